"""The tables of a Vision Transformer's names in other libraries: (pattern, our path, transform).

A transform swaps torch's (out, in) to our (in, out). names.py splits fused tensors: queries, keys and values, or a gate
and its other factor. Heads are unfolded later, by the shapes of the architecture.
"""

import re
from collections.abc import Callable
from typing import Any

import numpy as np

Transform = Callable[[np.ndarray], np.ndarray]
Rule = tuple[str, str, Transform]


def T(x: np.ndarray) -> np.ndarray:
    """(out, ...) -> (..., out)."""
    return np.moveaxis(x, 0, -1)


def conv(x: np.ndarray) -> np.ndarray:
    """(d, 3, p, p) -> (p, p, 3, d)."""
    return x.transpose(2, 3, 1, 0)


def same(x: np.ndarray) -> np.ndarray:
    """x itself."""
    return x


UNDONE: dict[Any, Transform] = {T: lambda x: np.moveaxis(x, -1, 0), conv: lambda x: x.transpose(3, 2, 0, 1), same: same}


def torch_layer(name: str, path: str) -> list[Rule]:
    """The rules of a dense layer's weight and bias."""
    return [(rf"{name}\.weight", f"{path}/kernel", T), (rf"{name}\.bias", f"{path}/bias", same)]


def torch_conv(name: str, path: str) -> list[Rule]:
    """The rules of a convolution's weight and bias."""
    return [(rf"{name}\.weight", f"{path}/kernel", conv), (rf"{name}\.bias", f"{path}/bias", same)]


def torch_norm(name: str, path: str) -> list[Rule]:
    """The rules of a norm's weight and bias."""
    return [(rf"{name}\.weight", f"{path}/scale", same), (rf"{name}\.bias", f"{path}/bias", same)]


TIMM: list[Rule] = [
    ("cls_token", "class_token", same),
    ("new_class_token", "new_class_token", same),
    ("reg_token", "registers", same),
    ("pos_embed", "position_embedding", same),
    *torch_conv(r"patch_embed\.proj", "patch_embedding"),
    *torch_norm("norm_pre", "pre_norm"),
    *torch_norm(r"(?:fc_)?norm", "norm"),
    *torch_layer("head", "head"),
    *torch_norm(r"blocks\.(\d+)\.norm([12])", r"block_\1/norm\2"),
    *torch_layer(r"blocks\.(\d+)\.attn\.qkv", r"block_\1/attention/qkv"),
    *torch_layer(r"blocks\.(\d+)\.attn\.proj", r"block_\1/attention/out"),
    *torch_layer(r"blocks\.(\d+)\.mlp\.fc1", r"block_\1/mlp_in"),
    *torch_layer(r"blocks\.(\d+)\.mlp\.fc2", r"block_\1/mlp_out"),
    (r"blocks\.(\d+)\.ls([12])\.gamma", r"block_\1/layer_scale\2/scale", same),
    (r"attn_pool\.latent", "pool/query_token", same),
    *torch_layer(r"attn_pool\.q", "pool/attention/query"),
    *torch_layer(r"attn_pool\.kv", "pool/attention/kv"),
    *torch_layer(r"attn_pool\.proj", "pool/attention/out"),
    *torch_norm(r"attn_pool\.norm", "pool/norm"),
    *torch_layer(r"attn_pool\.mlp\.fc1", "pool/mlp_in"),
    *torch_layer(r"attn_pool\.mlp\.fc2", "pool/mlp_out"),
]
TIMM_READ: list[Rule] = [  # names that are read, but not written
    (r"blocks\.(\d+)\.ls([12])\.weight", r"block_\1/layer_scale\2/scale", same),  # of timm's own renaming
    ("dist_token", "distillation", same),
    *torch_layer("head_dist", "head_dist"),
    *TIMM,
]
TIMM_EVA: list[Rule] = [  # Hugging Face's DINOv3 names LayerScale, biases and a gate differently
    (r"blocks\.(\d+)\.gamma_([12])", r"block_\1/layer_scale\2/scale", same),
    (r"blocks\.(\d+)\.attn\.q_bias", r"block_\1/attention/query/bias", same),
    (r"blocks\.(\d+)\.attn\.v_bias", r"block_\1/attention/value/bias", same),
    *torch_layer(r"blocks\.(\d+)\.mlp\.fc1_g", r"block_\1/mlp_gate"),
    *torch_layer(r"blocks\.(\d+)\.mlp\.fc1_x", r"block_\1/mlp_in"),
    *TIMM_READ,
]

HF_ROOT = r"(?:vit\.|deit\.|ijepa\.|dinov2\.|dinov2_with_registers\.)?"
HF_BLOCK = HF_ROOT + r"(?:encoder\.layer|layers)\.(\d+)"
HUGGING_FACE: list[Rule] = [  # ViT, and DINOv2 with and without registers; names of transformers 4, and 5's own
    (HF_ROOT + r"embeddings\.cls_token", "class_token", same),
    (HF_ROOT + r"embeddings\.register_tokens", "registers", same),
    (HF_ROOT + r"embeddings\.distillation_token", "distillation", same),
    (HF_ROOT + r"embeddings\.position_embeddings", "position_embedding", same),
    *torch_conv(HF_ROOT + r"embeddings\.patch_embeddings\.projection", "patch_embedding"),
    *torch_norm(HF_ROOT + "layernorm", "norm"),
    *torch_layer("(?:cls_)?classifier", "head"),
    *torch_layer("distillation_classifier", "head_dist"),
    *torch_norm(rf"{HF_BLOCK}\.(?:layernorm_before|norm1)", r"block_\1/norm1"),
    *torch_norm(rf"{HF_BLOCK}\.(?:layernorm_after|norm2)", r"block_\1/norm2"),
    *torch_layer(rf"{HF_BLOCK}\.attention\.attention\.(query|key|value)", r"block_\1/attention/\2"),
    *torch_layer(rf"{HF_BLOCK}\.attention\.q_proj", r"block_\1/attention/query"),
    *torch_layer(rf"{HF_BLOCK}\.attention\.k_proj", r"block_\1/attention/key"),
    *torch_layer(rf"{HF_BLOCK}\.attention\.v_proj", r"block_\1/attention/value"),
    *torch_layer(rf"{HF_BLOCK}\.attention\.(?:output\.dense|o_proj)", r"block_\1/attention/out"),
    *torch_layer(rf"{HF_BLOCK}\.mlp\.gate_proj", r"block_\1/mlp_gate"),
    *torch_layer(rf"{HF_BLOCK}\.(?:intermediate\.dense|mlp\.(?:fc1|weights_in|up_proj))", r"block_\1/mlp_in"),
    *torch_layer(rf"{HF_BLOCK}\.(?:output\.dense|mlp\.(?:fc2|weights_out|down_proj))", r"block_\1/mlp_out"),
    (rf"{HF_BLOCK}\.layer_scale([12])\.lambda1", r"block_\1/layer_scale\2/scale", same),
]
DINOV3_BLOCK = r"(?:model\.)?layer\.(\d+)"
DINOV3: list[Rule] = [
    (r"embeddings\.cls_token", "class_token", same),
    (r"embeddings\.register_tokens", "registers", same),
    *torch_conv(r"embeddings\.patch_embeddings", "patch_embedding"),
    *torch_norm("norm", "norm"),
    *torch_norm(rf"{DINOV3_BLOCK}\.norm([12])", r"block_\1/norm\2"),
    *torch_layer(rf"{DINOV3_BLOCK}\.attention\.q_proj", r"block_\1/attention/query"),
    *torch_layer(rf"{DINOV3_BLOCK}\.attention\.k_proj", r"block_\1/attention/key"),
    *torch_layer(rf"{DINOV3_BLOCK}\.attention\.v_proj", r"block_\1/attention/value"),
    *torch_layer(rf"{DINOV3_BLOCK}\.attention\.o_proj", r"block_\1/attention/out"),
    *torch_layer(rf"{DINOV3_BLOCK}\.mlp\.gate_proj", r"block_\1/mlp_gate"),
    *torch_layer(rf"{DINOV3_BLOCK}\.mlp\.up_proj", r"block_\1/mlp_in"),
    *torch_layer(rf"{DINOV3_BLOCK}\.mlp\.down_proj", r"block_\1/mlp_out"),
    (rf"{DINOV3_BLOCK}\.layer_scale([12])\.lambda1", r"block_\1/layer_scale\2/scale", same),
]
TOWER_ROOT = r"(?:vision_model\.)?"
TOWER_BLOCK = TOWER_ROOT + r"encoder\.layers\.(\d+)"
TOWER: list[Rule] = [  # the vision towers of CLIP and SigLIP
    (TOWER_ROOT + r"embeddings\.class_embedding", "class_token", same),
    (TOWER_ROOT + r"embeddings\.position_embedding\.weight", "position_embedding", same),
    *torch_conv(TOWER_ROOT + r"embeddings\.patch_embedding", "patch_embedding"),
    *torch_norm(TOWER_ROOT + "pre_layrnorm", "pre_norm"),
    *torch_norm(TOWER_ROOT + "post_layernorm", "norm"),
    (r"visual_projection\.weight", "projection/kernel", T),
    *torch_layer("classifier", "head"),
    *torch_norm(rf"{TOWER_BLOCK}\.layer_norm([12])", r"block_\1/norm\2"),
    *torch_layer(rf"{TOWER_BLOCK}\.self_attn\.q_proj", r"block_\1/attention/query"),
    *torch_layer(rf"{TOWER_BLOCK}\.self_attn\.k_proj", r"block_\1/attention/key"),
    *torch_layer(rf"{TOWER_BLOCK}\.self_attn\.v_proj", r"block_\1/attention/value"),
    *torch_layer(rf"{TOWER_BLOCK}\.self_attn\.out_proj", r"block_\1/attention/out"),
    *torch_layer(rf"{TOWER_BLOCK}\.mlp\.fc1", r"block_\1/mlp_in"),
    *torch_layer(rf"{TOWER_BLOCK}\.mlp\.fc2", r"block_\1/mlp_out"),
    (TOWER_ROOT + r"head\.probe", "pool/query_token", same),
    (TOWER_ROOT + r"head\.attention\.in_proj_weight", "pool/attention/qkv/kernel", T),
    (TOWER_ROOT + r"head\.attention\.in_proj_bias", "pool/attention/qkv/bias", same),
    *torch_layer(TOWER_ROOT + r"head\.attention\.out_proj", "pool/attention/out"),
    *torch_norm(TOWER_ROOT + r"head\.layernorm", "pool/norm"),
    *torch_layer(TOWER_ROOT + r"head\.mlp\.fc1", "pool/mlp_in"),
    *torch_layer(TOWER_ROOT + r"head\.mlp\.fc2", "pool/mlp_out"),
]
OPEN_CLIP_BLOCK = r"transformer\.resblocks\.(\d+)"
OPEN_CLIP: list[Rule] = [  # open_clip's visual tower, below `visual.`
    ("class_embedding", "class_token", same),
    ("positional_embedding", "position_embedding", same),
    *torch_conv("conv1", "patch_embedding"),
    *torch_norm("ln_pre", "pre_norm"),
    *torch_norm("ln_post", "norm"),
    ("proj", "head/kernel", same),
    *torch_norm(rf"{OPEN_CLIP_BLOCK}\.ln_([12])", r"block_\1/norm\2"),
    (rf"{OPEN_CLIP_BLOCK}\.attn\.in_proj_weight", r"block_\1/attention/qkv/kernel", T),
    (rf"{OPEN_CLIP_BLOCK}\.attn\.in_proj_bias", r"block_\1/attention/qkv/bias", same),
    *torch_layer(rf"{OPEN_CLIP_BLOCK}\.attn\.out_proj", r"block_\1/attention/out"),
    *torch_layer(rf"{OPEN_CLIP_BLOCK}\.mlp\.c_fc", r"block_\1/mlp_in"),
    *torch_layer(rf"{OPEN_CLIP_BLOCK}\.mlp\.c_proj", r"block_\1/mlp_out"),
    (rf"{OPEN_CLIP_BLOCK}\.ls_([12])\.gamma", r"block_\1/layer_scale\2/scale", same),
]
TORCHVISION_BLOCK = r"encoder\.layers\.encoder_layer_(\d+)"
TORCHVISION: list[Rule] = [  # vit_b_16 and its like; the names of its MLPs before and since version 0.14
    ("class_token", "class_token", same),
    (r"encoder\.pos_embedding", "position_embedding", same),
    *torch_conv("conv_proj", "patch_embedding"),
    *torch_norm(r"encoder\.ln", "norm"),
    *torch_layer(r"heads(?:\.head)?", "head"),
    *torch_norm(rf"{TORCHVISION_BLOCK}\.ln_([12])", r"block_\1/norm\2"),
    (rf"{TORCHVISION_BLOCK}\.self_attention\.in_proj_weight", r"block_\1/attention/qkv/kernel", T),
    (rf"{TORCHVISION_BLOCK}\.self_attention\.in_proj_bias", r"block_\1/attention/qkv/bias", same),
    *torch_layer(rf"{TORCHVISION_BLOCK}\.self_attention\.out_proj", r"block_\1/attention/out"),
    *torch_layer(rf"{TORCHVISION_BLOCK}\.mlp\.(?:0|linear_1)", r"block_\1/mlp_in"),
    *torch_layer(rf"{TORCHVISION_BLOCK}\.mlp\.(?:3|linear_2)", r"block_\1/mlp_out"),
]
NPZ_BLOCK = r"Transformer/encoderblock_(\d+)"
NPZ: list[Rule] = [
    ("cls", "class_token", same),
    (r"(?:Transformer/)?(?:posembed_input/)?pos_embedding", "position_embedding", same),
    (r"embedding/(kernel|bias)", r"patch_embedding/\1", same),
    (r"Transformer/encoder_norm/(scale|bias)", r"norm/\1", same),
    (r"head/(kernel|bias)", r"head/\1", same),
    (rf"{NPZ_BLOCK}/LayerNorm_0/(scale|bias)", r"block_\1/norm1/\2", same),
    (rf"{NPZ_BLOCK}/LayerNorm_[12]/(scale|bias)", r"block_\1/norm2/\2", same),
    (
        rf"{NPZ_BLOCK}/MultiHeadDotProductAttention_[01]/(query|key|value|qkv|out)/(kernel|bias)",
        r"block_\1/attention/\2/\3",
        same,
    ),
    (rf"{NPZ_BLOCK}/MlpBlock_[03]/Dense_0/(kernel|bias)", r"block_\1/mlp_in/\2", same),
    (rf"{NPZ_BLOCK}/MlpBlock_[03]/Dense_1/(kernel|bias)", r"block_\1/mlp_out/\2", same),
    ("MAPHead_0/probe", "pool/query_token", same),
    (r"MAPHead_0/MultiHeadDotProductAttention_0/(query|key|value|out)/(kernel|bias)", r"pool/attention/\1/\2", same),
    (r"MAPHead_0/LayerNorm_0/(scale|bias)", r"pool/norm/\1", same),
    (r"MAPHead_0/MlpBlock_0/Dense_0/(kernel|bias)", r"pool/mlp_in/\1", same),
    (r"MAPHead_0/MlpBlock_0/Dense_1/(kernel|bias)", r"pool/mlp_out/\1", same),
]
SCANNED = re.compile(r"Transformer/encoderblock/(.+)")
"""big_vision's blocks in one, each tensor with a first axis of the depth."""
