"""Rewrites a traced program before jax2onnx converts it, and its ONNX graph afterwards.

Before, in the primitives that jax2onnx converts for any batch size:

    stack                        concatenate, of the parts with an axis more
    pad                          concatenate, with the padding as arrays: jax2onnx pads no batch of any size
    platform_index, cond         the branch for any platform: ONNX names no device
    jit, custom_jvp_call         their inner program, so that the others are found in it

All other primitives stay as they are, so the numbers do. Afterwards, in the operators and the file format of an opset.
"""

from collections.abc import Callable, Iterator
from typing import Any

import jax
from jax import Array
from jax.extend.core import ClosedJaxpr, Literal

OPSETS = range(17, 24)
"""The opsets of ONNX that are written."""
OPSET = 17
"""The default: no later opset changes an output, and older runtimes read it. TensorRT 10 reads up to 20."""
INNER = {"jit": "jaxpr", "pjit": "jaxpr", "closed_call": "call_jaxpr", "custom_jvp_call": "call_jaxpr"}
"""The primitives that only call an inner program, and the parameter that holds it."""


def rewrite(program: ClosedJaxpr) -> Callable[..., list[Array]]:
    """The function of a traced program, without the primitives that jax2onnx lacks."""

    def rewritten(*inputs: Array) -> list[Array]:
        return run(program, inputs)

    return rewritten


def run(program: ClosedJaxpr, inputs: Any) -> list[Array]:
    """Runs a program equation by equation, each with its replacement if it has one."""
    jaxpr = program.jaxpr
    values: dict[Any, Any] = dict(zip(jaxpr.constvars, program.consts, strict=True))
    values |= dict(zip(jaxpr.invars, inputs, strict=True))

    def read(atom: Any) -> Any:
        return atom.val if isinstance(atom, Literal) else values[atom]

    for equation in jaxpr.eqns:
        given = [read(atom) for atom in equation.invars]
        outputs = run_equation(equation, given)
        values |= dict(zip(equation.outvars, outputs, strict=True))
    return [read(atom) for atom in jaxpr.outvars]


def run_equation(equation: Any, given: list[Any]) -> list[Any]:
    """The outputs of one equation."""
    name, params = equation.primitive.name, equation.params
    if name == "platform_index":
        return [default_of(params["platforms"])]
    if name == "cond" and isinstance(given[0], int):
        return run(params["branches"][given[0]], given[1:])
    if name in INNER:
        return run(params[INNER[name]], given)
    if name == "stack":
        parts = [jax.numpy.expand_dims(part, params["axis"]) for part in given]
        return [jax.lax.concatenate(parts, params["axis"])]
    if name == "pad" and all(low >= 0 and high >= 0 and not between for low, high, between in params["padding_config"]):
        x, value = given
        return [padded(x, value, params["padding_config"])]
    outputs = equation.primitive.bind(*given, **params)
    return outputs if equation.primitive.multiple_results else [outputs]


def default_of(platforms: tuple[tuple[str, ...] | None, ...]) -> int:
    """The place of the branch for any platform; the last, if each names its own."""
    return platforms.index(None) if None in platforms else len(platforms) - 1


def padded(x: Array, value: Array, sides: tuple[tuple[Any, Any, int], ...]) -> Array:
    """The array with a value on the sides of each axis: (before, after, 0)."""
    for axis, (before, after, _) in enumerate(sides):
        for count, is_before in ((before, True), (after, False)):
            if count:
                shape = (*x.shape[:axis], count, *x.shape[axis + 1 :])
                side = jax.numpy.broadcast_to(value, shape)
                parts = [side, x] if is_before else [x, side]
                x = jax.lax.concatenate(parts, axis)
    return x


def in_opset(graph: Any, opset: int) -> Any:
    """The ONNX graph in the operators and the file format of an opset, checked by onnx.

    jax2onnx gives the axes of reductions as an input, which opset 17 has as an attribute. It writes the file format of
    2024 for every opset, which programs of an older opset refuse.
    """
    from onnx import checker, helper, numpy_helper  # pyright: ignore

    parts = [*graphs_in(graph.graph)]
    constants = {tensor.name: tensor for part in parts for tensor in part.initializer}
    nodes = [node for part in parts for node in part.node]
    moved: set[str] = set()
    for node in nodes:
        by_input = node.op_type.startswith("Reduce") and node.op_type != "ReduceSum" and len(node.input) == 2
        if opset < 18 and by_input:
            name = node.input.pop()
            node.attribute.append(helper.make_attribute("axes", numpy_helper.to_array(constants[name]).tolist()))
            moved.add(name)
    unused = moved - {name for node in nodes for name in node.input}
    for part in parts:
        for tensor in [tensor for tensor in part.initializer if tensor.name in unused]:
            part.initializer.remove(tensor)
    graph.ir_version = helper.find_min_ir_version_for(graph.opset_import)
    checker.check_model(graph, full_check=True)
    return graph


def graphs_in(graph: Any) -> Iterator[Any]:
    """The ONNX graph and those of its loops and branches, inner ones too."""
    yield graph
    for node in graph.node:
        for attribute in node.attribute:
            for part in (*attribute.graphs, *([attribute.g] if attribute.HasField("g") else [])):
                yield from graphs_in(part)
