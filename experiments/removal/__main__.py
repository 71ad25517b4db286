"""`python -m experiments.removal --help` lists what there is."""

from tangent_jax.commands.main import dispatch

if __name__ == "__main__":
    dispatch("python -m experiments.removal", __package__, ("forget", "remove", "unlearned"))
