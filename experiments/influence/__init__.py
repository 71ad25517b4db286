"""Measurements of the influence of images: `python -m experiments.influence WHAT --flags`."""
