"""Audits private training: what an attacker who sees every step proves about epsilon, against what is claimed.

Trains many times with and without one mislabelled image (the canary) among a few others; the attacker knows all images
and every noisy gradient. The proved epsilon must lie under the claimed one, and comes near it for a Gaussian mechanism.
--broken audits a mechanism that is wrong on purpose. Exit code 1 where the proof exceeds the claim.

The last line of stdout: {"epsilon": claimed, "delta", "epsilon_lower": proved, "gaussian_epsilon_lower": proved were
the mechanism Gaussian, "confidence", "trials", "false_positives", "false_negatives", "kept": whether the claim stands}.
"""

import dataclasses
import sys
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from absl import flags
from scipy.stats import norm

from experiments import binary, common, pictures
from tangent_jax import weights
from tangent_jax.data.sources import open_dataset
from tangent_jax.privacy import ClippedSum, PrivateSettings, noisy_mean
from tangent_jax.privacy.audit import canary_scores, epsilon_lower_bound
from tangent_jax.privacy.train import micro_batches

DATASET = flags.DEFINE_string("dataset", "digits", "A data set, as finetune's --dataset.")
METHOD = flags.DEFINE_enum("method", "taft", ["taft", "nlft"], "Tangent or non-linear.")
SUBSET = flags.DEFINE_enum("subset", "full", list(common.PRIVATE_KINDS), "What trains.")
EPSILON = flags.DEFINE_float("epsilon", 3.0, "Claimed, for all steps.")
DELTA = flags.DEFINE_float("delta", 1e-5, "Claimed.")
STEPS = flags.DEFINE_integer("steps", 5, "Full-batch steps of each training.", lower_bound=1)
CLIP = flags.DEFINE_float("clip_norm", 1.0, "L2 norm to which an image's gradient is clipped.")
TRIALS = flags.DEFINE_integer("trials", 1000, "Trainings with the canary, and as many without.", lower_bound=4)
OTHERS = flags.DEFINE_integer("others", 7, "Other images.", lower_bound=1)
CONFIDENCE = flags.DEFINE_float("confidence", 0.95, "Of the bounds.", lower_bound=0.5, upper_bound=0.999999)
BROKEN = flags.DEFINE_enum(
    "broken", "nothing", ["nothing", "no_noise", "no_clipping", "noise_over_batch"], "What to break in the mechanism."
)
SEED = flags.DEFINE_integer("seed", 0, "Seed of head and noise.")
OUT = flags.DEFINE_string("out", "out/audit", "Folder for result.json and audit.png.")
flags.set_default(common.LOSS, "ce")
flags.set_default(common.OUTPUT, "tangent")


def unclipped(*data: Any, settings: PrivateSettings) -> ClippedSum:
    """Claims the sensitivity, and does not clip."""
    total = micro_batches(*data, settings=dataclasses.replace(settings, clip_norm=1e9))
    return dataclasses.replace(total, sensitivity=settings.clip_norm)


def silent(total: ClippedSum, noise_multiplier: float, count: float, key: jax.Array) -> Any:
    return jax.tree.map(lambda leaf: leaf / count, total.value)


def faint(total: ClippedSum, noise_multiplier: float, count: float, key: jax.Array) -> Any:
    return noisy_mean(total, noise_multiplier / count, count, key)


BREAKS: dict[str, dict[str, Any]] = {
    "nothing": {},
    "no_noise": {"noisy": silent},
    "no_clipping": {"summed": unclipped},
    "noise_over_batch": {"noisy": faint},
}


def main() -> None:
    settings = PrivateSettings(EPSILON.value, DELTA.value, STEPS.value, CLIP.value, loss=common.LOSS.value)
    pretrained = weights.load(common.WEIGHTS.value, common.ARCHITECTURE.value)
    dataset = open_dataset(DATASET.value)
    classes = len(dataset.classes)
    choice = common.Choice(METHOD.value, common.PRIVATE_KINDS[SUBSET.value])
    task = common.prepare(pretrained, classes, choice, SEED.value)
    train_set = task.inputs(dataset.splits["train"], "train inputs")
    rows = np.linspace(0, len(train_set.labels) - 1, OTHERS.value + 1).astype(int)
    labels = train_set.labels[rows].copy()
    labels[-1] = (labels[-1] + classes // 2) % classes
    absent, present = canary_scores(
        task.predict,
        task.subset.zeros(task.predict.w),
        jnp.asarray(train_set.inputs[rows]),
        jnp.asarray(labels, jnp.int32),
        settings,
        TRIALS.value,
        jax.random.key(SEED.value),
        progress=f"{METHOD.value} {SUBSET.value}, broken: {BROKEN.value}",
        **BREAKS[BROKEN.value],
    )
    bound = epsilon_lower_bound(absent, present, DELTA.value, CONFIDENCE.value)
    kept = max(bound.epsilon, bound.gaussian_epsilon) <= EPSILON.value
    out = Path(OUT.value)
    rates = np.linspace(0.0, 1.0, 201)
    power = [float(np.mean(present > np.quantile(absent, 1 - rate))) for rate in rates]
    claimed = norm.sf(norm.isf(rates) - STEPS.value**0.5 / settings.noise_multiplier)
    lines = {"attack": power, "the most that is claimed": claimed, "chance": rates}
    panel = {"x": rates, "lines": lines, "xlabel": "false positives", "ylabel": "true positives"}
    out.mkdir(parents=True, exist_ok=True)
    pictures.curves(out / "audit.png", [panel], f"Attack on {METHOD.value}, claimed epsilon {EPSILON.value:g}")
    result = {
        "epsilon": EPSILON.value,
        "delta": DELTA.value,
        "epsilon_lower": bound.epsilon,
        "gaussian_epsilon_lower": bound.gaussian_epsilon,
        "confidence": CONFIDENCE.value,
        "trials": TRIALS.value,
        "false_positives": bound.false_positives,
        "false_negatives": bound.false_negatives,
        "broken": BROKEN.value,
        "kept": kept,
    }
    binary.finish(out, result)
    if not kept:
        proved = max(bound.epsilon, bound.gaussian_epsilon)
        print(f"audit: expected epsilon <= {EPSILON.value:g}; got a proof of {proved:.3f}", file=sys.stderr)
        sys.exit(1)


if __name__ == "__main__":
    binary.run(main)
