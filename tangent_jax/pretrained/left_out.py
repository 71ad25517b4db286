"""Tensors of a weights file on which no output depends, by their names.

A file of training holds more than a network: the state of its optimizer, counters, a decoder, a text tower. The names
below say so. Every other tensor that a naming does not know refuses the file.
"""

import re
from collections.abc import Iterable, Mapping
from typing import Any

KINDS: dict[str, str] = {
    "a counter or buffer of torch's": r"(?:.+\.)?(?:num_batches_tracked|position_ids)",
    "the state of an optimizer": (
        r"(?:optim|optimizer|optimizer_states?|opt_state|lr_schedulers?|scheduler|grad_scaler|scaler)[./].+"
        r"|opt/(?!target/).+|state/.+"
    ),
    "a counter of training": (
        r"(?:global_)?(?:step|steps|epoch|iter|iteration)|n_averaged|initted|accum_\w+|(?:chrono|extra|measure)/.+"
    ),
    "a mask token or decoder of masked pre-training": r"decoder[._].+|(?:.+\.)?mask_token",
    "a text tower": r"(?:text_model|text_projection)\..+|txt/.+",
    "the scale or bias of a contrastive loss": r"logit_(?:scale|bias)|[tb]",
    "a projection head of self-supervised training": r"(?:dino|ibot)_head\..+|projectors\..+",
    "a norm of small crops, in training alone": r"local_cls_norm\..+",
    "a loss or metric": (
        r"(?:criterion|loss|loss_fn|loss_func|(?:train|val|valid|test)_(?:acc|accuracy|loss|metrics?))[._].+"
        r"|(?:.+\.)?(?:tp|fp|tn|fn|confmat)"  # of torchmetrics
    ),
    "a pooler that no classifier reads": r"(?:\w+\.)?pooler\..+",
    "the representation layer of 2020": r"pre_logits[./].+",
}
"""The kinds of such tensors, each with a pattern of their names."""
BESIDE_VISUAL = (
    r"(?:text|transformer|token_embedding|ln_final|text_projection)\..+"
    r"|positional_embedding|text_projection|attn_mask|cls_emb|input_resolution|context_length|vocab_size"
)
"""The text side of open_clip, in a file that also has `visual.`; alone, a visual tower has some of these names."""
AVERAGE = re.compile(r"(?:\w+_)?ema(?:_\w+)?[./]")
"""Begins the names of a moving average of the weights; in a file without other tensors it is a prefix."""
AVERAGES = "a moving average of the weights"
"""The kind of such tensors."""
OF_DINO = r"head\.(?:mlp\.\d+|last_layer)\..+"
"""The projection head of DINO and iBOT, in a file with its last layer; an MLP alone is a head of the user's own."""
HEAD_OF_LAYER = ("head.weight", "head.bias", "head/kernel", "head/bias")
"""A head above the representation layer of 2020, without which it has no meaning."""


def left_out(names: Iterable[str]) -> dict[str, str]:
    """Returns what each tensor is that no output depends on, by name."""
    names = [*names]
    kinds = dict(KINDS)
    if any(name.startswith("visual.") for name in names):
        kinds["a text tower beside a visual one"] = BESIDE_VISUAL
    if "classifier.weight" in names:  # of a network of the user's own: transformers' classifiers have no pooler
        del kinds["a pooler that no classifier reads"]
    if any(name.startswith("head.last_layer.") for name in names):
        kinds["a projection head of self-supervised training"] += f"|{OF_DINO}"
    patterns = {kind: re.compile(pattern) for kind, pattern in kinds.items()}
    found = {}
    for name in names:
        kind = next((kind for kind, pattern in patterns.items() if pattern.fullmatch(name)), None)
        if kind is not None:
            found[name] = kind
    if "the representation layer of 2020" in found.values():
        found |= {name: "a head above the representation layer of 2020" for name in names if name in HEAD_OF_LAYER}
    rest = [name for name in names if name not in found]
    averages = [name for name in rest if AVERAGE.match(name)]
    if len(averages) < len(rest):
        found |= dict.fromkeys(averages, AVERAGES)
    return found


def without(tensors: Mapping[str, Any]) -> dict[str, Any]:
    """The tensors on which an output may depend."""
    gone = left_out(tensors)
    return {name: value for name, value in tensors.items() if name not in gone}
