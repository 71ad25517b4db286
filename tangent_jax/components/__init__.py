"""Trained steps that leave training: sums of them, where they came from, where they are kept."""
