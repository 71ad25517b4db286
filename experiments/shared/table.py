"""The flags of experiments alone, beside those of the commands (tangent_jax/commands/shared/table.py)."""

from functools import partial

from tangent_jax.commands.shared import table
from tangent_jax.commands.shared.table import flag

OWN: dict[str, partial] = {
    "shadows": flag("integer", "Shadow models of the membership attack.", low=2),
    "search_epochs": flag("integer", "Epochs of each searched run.", low=1),
    "search_images": flag(
        "integer", "Training images of each searched run, at most, drawn at random; unset: all.", low=2
    ),
    "shares": flag("list", "Shares of the training images that fine-tune the anchor; 0: the pre-trained weights."),
    "rounds": flag("integer", "Number of rounds of federated averaging.", low=1),
    "local_epochs": flag("integer", "Epochs of each contributor in a round of federated averaging.", low=1),
    "ranks": flag("list", "Numbers of singular vectors of a contributor's truncated factor."),
    "confidence": flag("float", "Confidence of the bounds.", low=0.5, high=0.999999),
    "broken": flag("string", "Part of the mechanism to break on purpose."),
    "steps": flag("integer", "Number of optimiser steps, each on one batch (in private runs on all examples).", low=1),
    "quick": flag("bool", "Small models, few epochs and few settings."),
    "repeats": flag("integer", "Repetitions of a measurement: rounds (at most), orders, or runs.", low=1),
    "seconds": flag("float", "Time limit in seconds, without compilation; one round always runs.", low=0.1),
    "only": flag(
        "list",
        "Only these: sections of a page, such as 'Table 7', or sets of features, joined by +: h (before the head), "
        "ntk (sketched gradients), place (where in the image features lie). Unset: all.",
    ),
    "removed": flag("float", "Number of images to remove; below 1, the fraction of all.", low=0.0),
    "size": flag(
        "string", "ViT size, Ti, S, B or L (patches of 16 at 224 pixels), or an architecture such as dinov3-S/16."
    ),
    "models": flag("integer", "Number of models trained for comparison.", low=2),
    "network": flag("string", "A network's name; pretrained: the tangent of --weights."),
    "scheme": flag("string", "Pre-training: by classes, masked patches, or the images of their names."),
    "search_anchor": flag("bool", "Also search PT and CLS, not only the learning rate."),
    "finished": flag("list", "JOB=FOLDER of results computed elsewhere, such as table3=out/table3."),
    "by": flag(
        "string",
        "Influence of each component, or of each image by the kernel or by warm solves.",
    ),
    "flip": flag("float", "Fraction of labels to flip and then detect.", low=0.0, high=0.5),
    "resolved": flag("integer", "Number of images to leave out, one by one, with a new solve, as a check.", low=0),
    "other": flag(
        "string",
        "A data set unlike --dataset: of other subjects, or far from the pre-training (paper report).",
    ),
    "textures": flag("string", "A data set of textures, as the paper's Table 10 composes DTD."),
    "attacked": flag("integer", "Number of attacked models, among --shadows in total.", low=5),
    "known": flag(
        "integer", "Number of models attacked with knowledge of all other images, for --certificates.", low=2
    ),
    "certificates": flag("list", "Certificates of exact removals to attack."),
}
TABLE = table.TABLE | OWN
"""The flags of all binaries."""
