"""The influence of images, measured: `python -m experiments.influence WHAT --flags`."""
