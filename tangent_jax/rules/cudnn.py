"""Attention without its matrix: cuDNN's fused kernel, on CUDA in half precision.

    o = softmax(q k^T / sqrt(e)) v

`kernel` is the custom call of `jax.nn.dot_product_attention(implementation="cudnn")`. That function queries the tracing
machine for cuDNN, so a machine without cuDNN could not export a program for CUDA; this one does not. The call has no
forward rule, so `multi_head.attention` uses it only without tangents. On an H200, ViT-L's trunk is 1.28
times as fast with it as with the matrix (docs/accelerators/nvidia_h200.md).
"""

import json
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array
from jax.experimental.custom_partitioning import custom_partitioning
from jax.sharding import NamedSharding, PartitionSpec
from jaxtyping import Float

Attend = Callable[[Array, Array, Array], Array]
TARGET = "__cudnn$fmhaSoftmax"
ELEMENTS = {"bfloat16": "BF16", "float16": "F16"}
WIDEST = 128  # features per head, on all GPUs since Ampere; Hopper takes 256


def takes(q: Float[Array, "b n h e"]) -> bool:
    """True for queries that the kernel supports.

    These are in half precision, with heads of 8, 16, ... 128 features, and a known number of examples, which the
    kernel's settings hold (so programs for any batch size cannot use it).
    """
    return isinstance(q.shape[0], int) and q.dtype.name in ELEMENTS and q.shape[-1] % 8 == 0 and q.shape[-1] <= WIDEST


def settings(q: Any, k: Any) -> str:
    """The kernel's settings, as XLA reads them."""
    b, n, h, e = q.shape
    products = {"bmm1": ("3", "3", ["0", "2"]), "bmm2": ("3", "1", ["0", "1"])}  # q k^T, then a v
    dots = {
        f"{name}_dot_dimension_numbers": {
            "lhs_contracting_dimensions": [left],
            "rhs_contracting_dimensions": [right],
            "lhs_batch_dimensions": batch,
            "rhs_batch_dimensions": ["0", "2"],
        }
        for name, (left, right, batch) in products.items()
    }
    scores = {
        "element_type": ELEMENTS[q.dtype.name],
        "dimensions": [str(size) for size in (b, h, n, k.shape[1])],
        "layout": {"minor_to_major": ["3", "2", "1", "0"]},
        "is_dynamic_dimension": [False] * 4,
    }
    algorithm = {"algo_id": "0", "math_type": "TENSOR_OP_MATH", "tuning_knobs": {"17": "1", "24": "0"}}
    algorithm |= {"is_cudnn_frontend": True, "workspace_size": "0"}
    own = {"algorithm": algorithm, "fmha_scale": e**-0.5, "intermediate_tensor_shape": scores, **dots}
    own |= {"is_flash_attention": True, "mask_type": "NO_MASK", "dropout_rate": 0.0, "seed": 42}
    own |= {"sliding_window_length": 0, "max_seg_per_batch": 1, "is_paged_attention": False}
    return json.dumps({"operation_queue_id": "0", "cudnn_fmha_backend_config": own})


def kernel(
    q: Float[Array, "b n h e"], k: Float[Array, "b m h e"], v: Float[Array, "b m h e"]
) -> Float[Array, "b n h e"]:
    """The custom call on one device."""
    b, n, h, e = q.shape
    results = (
        jax.ShapeDtypeStruct((b, h, n, e), q.dtype),
        jax.ShapeDtypeStruct((0,), jnp.uint8),
    )  # output, workspace
    layouts = (0, 2, 1, 3), (0,)  # in memory the output is "b n h e"
    call = jax.ffi.ffi_call(
        TARGET, results, output_layouts=layouts, custom_call_api_version=2, legacy_backend_config=settings(q, k)
    )
    return jnp.swapaxes(call(q, k, v)[0], 1, 2)


def over_devices(call: Attend) -> Attend:
    """The call on arrays divided over devices along examples: each device computes its own part."""

    def partition(mesh: Any, operands: Any, _: Any) -> Any:
        rows = NamedSharding(mesh, PartitionSpec(*operands[0].sharding.spec[:1]))
        return mesh, call, rows, (rows, rows, rows)

    divided: Any = custom_partitioning(call)
    axes = "b n h e, b m h e, b m h e -> b n h e"
    divided.def_partition(partition, sharding_rule=axes, need_replication_factors=("n", "h", "e", "m"))
    return divided


def over_examples(call: Attend) -> Attend:
    """The call under vmap: a vmapped axis is merged into the examples."""
    batched: Any = jax.custom_batching.custom_vmap(call)

    @batched.def_vmap
    def rule(size: int, is_batched: Any, *operands: Array) -> tuple[Array, bool]:
        pairs = zip(operands, is_batched, strict=True)
        every = [a if has_axis else jnp.broadcast_to(a, (size, *a.shape)) for a, has_axis in pairs]
        o = batched(*(a.reshape(-1, *a.shape[2:]) for a in every))
        return o.reshape(every[0].shape), True

    return batched


attend = over_examples(over_devices(kernel))
