"""Removals, measured: `python -m experiments.removal WHAT --flags`."""
