"""Times and memory, measured: `python -m experiments.bench WHAT --flags`."""
