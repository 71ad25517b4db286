"""`python -m experiments.paper --help` lists the experiments."""

from tangent_jax.commands.shared.dispatch import dispatch

if __name__ == "__main__":
    dispatch("python -m experiments.paper", "experiments.paper", ("report", "table1", "table3", "ablations", "anchors"))
