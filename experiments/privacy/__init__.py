"""Private training, measured: `python -m experiments.privacy WHAT --flags`."""
