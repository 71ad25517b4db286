"""`python -m experiments.bench --help` lists the experiments."""

from tangent_jax.commands.shared.dispatch import dispatch

WHAT = (
    "step",
    "job",
    "private",
    "solve",
    "store",
    "export",
    "scale",
    "times",
    "accelerator",
    "features",
    "rivals",
    "session",
    "hog",
    "sizes",
    "kernels",
    "contributors",
    "experts",
)

if __name__ == "__main__":
    dispatch("python -m experiments.bench", "experiments.bench", WHAT)
