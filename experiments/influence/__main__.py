"""`python -m experiments.influence --help` lists what there is."""

from tangent_jax.commands.main import dispatch

if __name__ == "__main__":
    dispatch("python -m experiments.influence", "experiments.influence", ("attribution", "effects"))
