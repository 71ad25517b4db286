"""timm's names of tensors that older or original programs of the same networks wrote otherwise.

    theirs                      timm's                  written by
    blocks.0.gamma_1            blocks.0.ls1.gamma      DeiT III
    blocks.0.ls1.weight         blocks.0.ls1.gamma      timm's own renaming in transformers
    blocks.0.5.norm1.weight     blocks.5.norm1.weight   DINOv2, whose blocks may be in chunks
    blocks.0.mlp.w12, w3        blocks.0.mlp.fc1, fc2   DINOv2, with a gate
    register_tokens             reg_token               DINOv2 with registers

timm's DINOv2 with registers has no position of the class token: it is added to the token, as timm's own conversion
does. DINOv2's program takes a square of patches, so that the rest without the first position is one.
In timm's EVA networks `gamma_1` is the name itself. Source: `checkpoint_filter_fn` of timm's models.
"""

import math
import re
from collections.abc import Iterable

import numpy as np

from tangent_jax.pretrained.files import Tensors

RENAMED = (
    (r"blocks\.\d+\.(\d+\..+)", r"blocks.\1"),
    (r"(blocks\.\d+\.)gamma_([12])", r"\1ls\2.gamma"),
    (r"(blocks\.\d+\.ls[12]\.)weight", r"\1gamma"),
    (r"(blocks\.\d+\.mlp\.)w12\.(weight|bias)", r"\1fc1.\2"),
    (r"(blocks\.\d+\.mlp\.)w3\.(weight|bias)", r"\1fc2.\2"),
    (r"register_tokens", "reg_token"),
)
"""(their name, timm's), one after the other."""
GAMMA = re.compile(r"blocks\.\d+\.gamma_[12]")


def renamed(name: str, table: Iterable[tuple[str, str]]) -> str:
    """Returns the name by the rows (pattern, new name) of a table, one after the other."""
    for theirs, ours in table:
        match = re.fullmatch(theirs, name)
        if match:
            name = match.expand(ours)
    return name


def is_of_eva(names: Iterable[str]) -> bool:
    """Returns True for names of timm's EVA networks: without learned positions, or with a bias of queries alone."""
    names = [*names]
    return "pos_embed" not in names or any(name.endswith(".attn.q_bias") for name in names)


def with_timm_names(file: Tensors) -> Tensors:
    """Returns the file under timm's names; as it is if two of its tensors then had one name."""
    keeps_gammas = is_of_eva(file.tensors)
    spelled = {
        name: name if keeps_gammas and GAMMA.fullmatch(name) else renamed(name, RENAMED) for name in file.tensors
    }
    if len({*spelled.values()}) < len(spelled):  # translate says which
        return file
    tensors = {spelled[name]: value for name, value in file.tensors.items()}
    if "register_tokens" in file.tensors:
        tensors = with_class_position(tensors)
    return file._replace(tensors=tensors, written=file.shapes)


def with_class_position(tensors: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Returns the tensors with the position of the class token within the token."""
    token, positions = tensors.get("cls_token"), tensors.get("pos_embed")
    if token is None or positions is None or positions.ndim != 3 or positions.shape[1] < 2:
        return tensors  # infer says what is missing
    patches = positions.shape[1] - 1
    if token.shape[-1] != positions.shape[-1] or math.isqrt(patches) ** 2 != patches:
        return tensors
    whole = np.asarray(token, np.float32) + np.asarray(positions[:, :1], np.float32)
    return {**tensors, "cls_token": whole, "pos_embed": positions[:, 1:]}
