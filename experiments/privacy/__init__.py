"""Measurements of private training: `python -m experiments.privacy WHAT --flags`."""
