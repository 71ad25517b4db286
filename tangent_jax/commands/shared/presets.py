"""Presets: a value of --preset sets several flags."""

PRESETS: dict[str, dict[str, str]] = {
    "paper": {
        "method": "taft,soup,fc,adapter,lora,tangent_lora,tangent_adapter",
        "lr": "1e-2,3e-3,1e-3",
        "rank": "4,16",
    },
    "optimum": {
        "method": "taft",
        "output": "total",
        "solver": "optimum",
        "penalty": "0.1",
        "passes": "12",
        "merge": "inputs",
        "merge_penalty": "0.1",
    },
    "classes": {
        "method": "taft,soup",
        "head": "named",
        "sharding": "class",
        "merge": "mean,inputs,curvature",
        "merge_penalty": "1e-7,1e-6,1e-5,1e-4,1e-3,1e-2",
    },
}
"""The defaults of other flags by preset.

paper: the paper's seven methods with its search of learning rates and ranks. optimum: tangents at their optimum, merged
by the second moments of their inputs. classes: contributors with different classes.
"""


def help_of_presets() -> str:
    """The help text of --preset: the flags that each preset sets."""
    flags = {name: " ".join(f"--{flag}={value}" for flag, value in own.items()) for name, own in PRESETS.items()}
    return "Other defaults: " + "; ".join(f"{name} for {text}" for name, text in flags.items()) + "."
