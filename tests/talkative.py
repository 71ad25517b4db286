"""Runs a binary whose bars are a line every tenth of a second: `talkative MODULE FLAGS`."""

import runpy
import sys

from tangent_jax.io import progress

if __name__ == "__main__":
    progress.EVERY = 0.1
    sys.argv.pop(0)
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
