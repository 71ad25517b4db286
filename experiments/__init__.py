"""absl binaries, one per claim of the paper: `python -m experiments.NAME --help`."""
