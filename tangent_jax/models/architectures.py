"""timm's architectures by name: facts that the tensors of a file do not show, such as heads, activation and pool.

`assets/timm.json` is the table, generated from timm (tests/models/make_architectures.py). The caller names a file's
architecture, or the config.json that timm's hub code writes. Otherwise the candidates are the architectures whose
tensors have the same names and shapes.
"""

import dataclasses
import functools
import hashlib
import json
import re
from collections.abc import Mapping
from importlib import resources
from typing import Any

from tangent_jax.core import expect
from tangent_jax.core.records import convert, short

APART = re.compile(r"head(_dist)?\.|fc\.|decoder_|mask_token$|pre_logits|.*num_batches_tracked$")
"""Tensors that do not distinguish architectures: the head, whose size is the classes, and unused parts."""

WHOLE = ("architecture", "num_classes", "num_features", "global_pool", "model_args", "pretrained_cfg")
"""The fields of timm's config.json."""
LABELS = ("label_names", "label_descriptions", "license", "tags")
CFG = (
    "url", "file", "state_dict", "hf_hub_id", "hf_hub_filename", "source", "architecture", "tag", "custom_load",
    "input_size", "test_input_size", "min_input_size", "fixed_input_size", "interpolation", "crop_pct",
    "test_crop_pct", "crop_mode", "mean", "std", "num_classes", "label_offset", "label_names", "label_descriptions",
    "pool_size", "test_pool_size", "first_conv", "classifier", "license", "description", "origin_url", "paper_name",
    "paper_ids", "notes",
)  # fmt: skip
"""The fields of timm's pretrained_cfg."""
COMMON = (
    "add_cross_attention", "is_decoder", "begin_suppress_tokens", "bos_token_id", "cross_attention_hidden_size",
    "decoder_start_token_id", "diversity_penalty", "do_sample", "early_stopping", "encoder_no_repeat_ngram_size",
    "eos_token_id", "finetuning_task", "forced_bos_token_id", "forced_eos_token_id", "length_penalty", "max_length",
    "min_length", "no_repeat_ngram_size", "num_beam_groups", "num_beams", "num_return_sequences", "output_scores",
    "pad_token_id", "prefix", "remove_invalid_values", "repetition_penalty", "return_dict_in_generate",
    "sep_token_id", "suppress_tokens", "task_specific_params", "temperature", "tf_legacy_loss", "tie_encoder_decoder",
    "tie_word_embeddings", "tokenizer_class", "top_k", "top_p", "torchscript", "typical_p", "use_bfloat16",
    "_name_or_path", "architectures", "model_type", "torch_dtype", "dtype", "transformers_version", "id2label",
    "label2id", "problem_type", "return_dict", "chunk_size_feed_forward", "output_attentions", "output_hidden_states",
    "is_encoder_decoder", "use_cache", "initializer_range", "initializer_factor", "hidden_dropout_prob",
    "attention_probs_dropout_prob", "attention_dropout", "drop_path_rate", "encoder_stride", "pooler_output_size",
    "pooler_act", "apply_layernorm", "reshape_hidden_states", "out_features", "out_indices", "stage_names",
    "num_channels", "num_labels", "qkv_bias", "mlp_ratio", "layerscale_value", "use_mask_token", "query_bias",
    "key_bias", "value_bias", "proj_bias", "mlp_bias", "pos_embed_shift", "pos_embed_jitter", "pos_embed_rescale",
    "vision_use_head", "num_patches", "projection_dim", "logit_scale_init_value", "dropout", "hidden_size",
    "num_hidden_layers", "intermediate_size", "image_size", "patch_size", "num_attention_heads", "hidden_act",
    "layer_norm_eps", "num_register_tokens", "use_swiglu_ffn", "use_gated_mlp", "rope_theta", "rope_parameters",
)  # fmt: skip
"""Fields of Hugging Face's Vision Transformers that are read, shown by the tensors, or of no effect on the outputs."""


@dataclasses.dataclass(frozen=True)
class Architecture:
    """One architecture of timm.

    `key`: of the names and shapes of its tensors; `facts`: settings that these do not show, by name; `images`: the
    Preprocessing of its default weights; `refused`: a part that this library lacks, or None.
    """

    family: str
    key: str
    images: dict[str, Any] = dataclasses.field(default_factory=dict)
    facts: dict[str, Any] = dataclasses.field(default_factory=dict)
    refused: str | None = None


def key_of(shapes: Mapping[str, tuple[int, ...]]) -> str:
    """The key of tensors by their names and shapes."""
    lines = sorted(f"{name} {[*shape]}" for name, shape in shapes.items() if not APART.match(name))
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()[:12]


@functools.cache
def architectures() -> dict[str, Architecture]:
    """The table."""
    content = (resources.files("tangent_jax") / "assets" / "timm.json").read_text()
    return {name: convert(Architecture, fields, "load", name) for name, fields in json.loads(content).items()}


def find(family: str, title: str, name: str, where: str) -> Architecture:
    """The architecture of a name; InputError for a name that timm lacks, or one with parts that this library lacks.

    title: the family's, in the plural.
    """
    known, do = architectures().get(name), "Pass a model of your own: docs/tutorials/your_model.ipynb"
    expected = f"an architecture of timm's {title} in {where}"
    expect(known is not None and known.family == family, expected, name, do)
    assert known is not None
    expected, got = f"an architecture whose parts are here in {where}", f"{name}: {known.refused}"
    expect(known.refused is None, expected, got)
    return known


def alike(shapes: Mapping[str, tuple[int, ...]]) -> dict[str, Architecture]:
    """The architectures whose tensors have these names and shapes, by name, including unsupported ones."""
    key = key_of(shapes)
    return {name: own for name, own in architectures().items() if own.key == key}


def check_understood(fields: Mapping[str, Any], known: Any, where: str) -> None:
    """Raises InputError naming a field that is unknown and neither null nor empty.

    A value of false is refused too: it may switch off a feature that is on by default.
    """
    for name in sorted(fields.keys() - {*known}):
        value = fields[name]
        is_off = value is None or value in ({}, [], "")
        do = "Load it where that is supported, and save what is needed here"
        expect(is_off, f"no {name} in {where}", short(value), do)
