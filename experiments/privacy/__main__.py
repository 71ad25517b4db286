"""`python -m experiments.privacy --help` lists the experiments."""

from tangent_jax.commands.shared.dispatch import dispatch

if __name__ == "__main__":
    dispatch("python -m experiments.privacy", "experiments.privacy", ("audit", "coverage", "owners", "statistics"))
