"""The paper's tables and figures, measured: `python -m experiments.paper WHAT --flags`."""
