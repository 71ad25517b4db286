"""absl binaries that test the paper's claims, measure, and compare: `python -m experiments.NAME --help`."""

import sys

from tangent_jax.commands.shared.dispatch import end_at_a_signal

if "pytest" not in sys.modules:
    end_at_a_signal()
