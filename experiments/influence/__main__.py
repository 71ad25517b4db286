"""`python -m experiments.influence --help` lists the experiments."""

from tangent_jax.commands.shared.dispatch import dispatch

if __name__ == "__main__":
    dispatch("python -m experiments.influence", "experiments.influence", ("attribution", "effects"))
