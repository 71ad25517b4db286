"""Measurements of removals: `python -m experiments.removal WHAT --flags`."""
