"""Measurements of time and memory: `python -m experiments.bench WHAT --flags`."""
