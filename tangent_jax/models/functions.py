"""A model made of functions from any framework; its tangent is computed by `jax.jvp`, without a closed form.

    x_0 = inputs,    x_(s+1) = f_s(w, x_s),    outputs = head(w, x_S)

Every function receives all weights in the caller's own pytree: an NNX state after `nnx.split`, an Equinox module, the
variables of a linen module. A leaf belongs to the first stage that reads it, so a tied leaf belongs to the lowest;
leaves that only the head reads get paths `head/...`. Each example is computed alone, under vmap.
"""

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array
from jax.tree_util import GetAttrKey, keystr
from jaxtyping import Float, PRNGKeyArray, Shaped

from tangent_jax.core import trees
from tangent_jax.core.checks import InputError, failure
from tangent_jax.core.identities import identity, primitives, program_reading
from tangent_jax.core.notation import Tree
from tangent_jax.core.preprocessing import Preprocessing
from tangent_jax.core.promotion import promotes
from tangent_jax.linearization import changes_state
from tangent_jax.models.anchor import Pretrained
from tangent_jax.models.protocol import Arrays, normal, stages_run

Stage = Callable[[Any, Array], Array]
"""f(w, x "b ...") -> "b ..."."""
DRAWS = {"random_bits", "threefry2x32", "rng_bit_generator", "random_gamma"}
OWN = "Give model_of the weights and the function of another head"
WRONG_SHAPES = "Look at its shapes; put a module that draws or keeps statistics into evaluation"


class Leaf(NamedTuple):
    """A leaf of the weights: its path here, its path in the caller's tree, its shape, its stage."""

    path: str
    name: str
    shape: tuple[int, ...]
    stage: int


@dataclasses.dataclass(frozen=True)
class FunctionModel:
    """Functions without their weights, as a model of the protocol (models/protocol.py).

    Attributes:
        functions: The stages below the head.
        structure: The structure of the caller's tree, with its `leaves` in this order.
        input_shapes: The input shapes of one example, stage by stage.
        head: The last function; None for a dense layer of `classes` outputs, or for no head if classes is 0.
        dual: The closed form as in the protocol, or None.
    """

    functions: tuple[Stage, ...]
    structure: Any
    leaves: tuple[Leaf, ...]
    input_shapes: tuple[tuple[int, ...], ...]
    preprocessing: Preprocessing | Arrays = Arrays("float32")  # noqa: RUF009
    head: Stage | None = None
    classes: int = 0
    dual: Any = None

    @property
    def stages(self) -> int:
        return len(self.functions) + 1

    @property
    def image_size(self) -> int:
        return 0 if isinstance(self.preprocessing, Arrays) else self.input_shapes[0][0]

    @property
    def settings(self) -> dict[str, Any]:
        """The program of every stage, traced now, with its constants and leaves, without names.

        The same at any default precision of products: those of two machines are one architecture.
        """
        flat = {leaf.path: jax.ShapeDtypeStruct(leaf.shape, jnp.float32) for leaf in self.leaves}
        dtype = self.preprocessing.dtype if isinstance(self.preprocessing, Arrays) else "float32"
        x = jax.ShapeDtypeStruct((1, *self.input_shapes[0]), dtype)
        with jax.default_matmul_precision(None):
            programs = [t.program for t in trace_stages(self.own_functions, self.as_given(flat), x)]
        inputs = {"shape": [*self.input_shapes[0]], "dtype": str(x.dtype)}
        return {"programs": programs, "inputs": inputs, "classes": self.classes, "jax": jax.__version__}

    @property
    def own_functions(self) -> tuple[Stage, ...]:
        """The caller's functions: the stages, and the head if the caller gave one."""
        return self.functions if self.head is None else (*self.functions, self.head)

    def shapes(self) -> dict[str, tuple[int, ...]]:
        own = {leaf.path: leaf.shape for leaf in self.leaves}
        if self.head is not None or not self.classes:
            return own
        return {**own, "head/kernel": (*self.input_shapes[-1], self.classes), "head/bias": (self.classes,)}

    def stage_of(self, path: str) -> int:
        return next((leaf.stage for leaf in self.leaves if leaf.path == path), len(self.functions))

    def input_shape(self, stage: int) -> tuple[int, ...]:
        return self.input_shapes[stage]

    def initial(self, path: str, key: PRNGKeyArray) -> Float[Array, "..."]:
        """A dense head of N(0, 0.01^2) with bias 0."""
        if path in {leaf.path for leaf in self.leaves}:
            raise InputError(
                f"leaves to draw must be of a dense head; got {path}, a leaf of your own. Draw it, and give it "
                "to model_of"
            )
        shape = self.shapes()[path]
        return jnp.zeros(shape) if path == "head/bias" else normal(key, shape, 0.01)

    def as_given(self, flat: dict[str, Any]) -> Any:
        """The weights in the caller's tree."""
        return jax.tree.unflatten(self.structure, [flat[leaf.path] for leaf in self.leaves])

    @promotes
    def apply(
        self, w: Tree, x: Shaped[Array, "b ..."], start: int = 0, stop: int | None = None
    ) -> Shaped[Array, "b ..."]:
        run = stages_run(len(self.functions), self.input_shape, x, start, stop)
        flat = trees.leaves(w)
        own = self.as_given(flat)

        def alone(x: Array) -> Array:
            for stage in run:
                if stage < len(self.own_functions):
                    x = self.own_functions[stage](own, x[None])[0]
                elif self.classes:
                    x = x @ flat["head/kernel"] + flat["head/bias"]
            return x

        return jax.vmap(alone)(x)

    def with_classes(self, classes: int) -> "FunctionModel":
        """The same stages with a dense head; InputError if the caller gave a head."""
        if self.head is not None:
            raise InputError(f"the head must be a dense one, to be replaced; got a head of your own. {OWN}")
        shape = self.input_shapes[-1]
        if len(shape) != 1:
            raise InputError(f'the last stage must return features "b d"; got shape (b, {str(shape)[1:]}')
        return dataclasses.replace(self, classes=classes)

    def to_world(self, flat: dict[str, Any]) -> dict[str, Any]:
        """Leaves under the caller's paths."""
        names = {leaf.path: leaf.name for leaf in self.leaves}
        return {names.get(path, path): leaf for path, leaf in flat.items()}

    def from_world(self, tensors: dict[str, Any]) -> dict[str, Any]:
        """Leaves by path, from tensors under the caller's paths."""
        paths = {leaf.name: leaf.path for leaf in self.leaves}
        return {paths.get(name, name): tensor for name, tensor in tensors.items()}


@promotes
def model_of(
    stages: Sequence[Stage],
    w: Any,
    inputs: Any,
    *,
    head: Stage | None = None,
    preprocessing: Preprocessing | None = None,
    dual: Any = None,
) -> Pretrained:
    """A model, with its weights, made of functions from any framework, ready for `tj.tangent`.

    Args:
        stages: Functions (w, x "b ...") -> "b ...": the first reads the inputs, each other one its predecessor's
            result.
        w: Their weights, a pytree of f32 leaves, which each function receives whole.
        inputs: Some inputs, "b ...", or their jax.ShapeDtypeStruct; whole numbers, such as token ids, stay whole
            numbers.
        head: The last function, with outputs "b c"; None: the stages give features "b d", and `with_head(classes, key)`
            adds a dense layer.
        preprocessing: For images "b y x 3", which the functions read normalised; None for arrays.
        dual: The closed form of the tangent as in tj.Model, None for `jax.jvp`.

    Returns:
        Pretrained.

    Guarantees:
        An example's outputs depend on no other example, whatever the functions compute.

    Raises:
        InputError: A leaf that is not f32, or that no function reads; a function that does not return an array of
            floats, draws random numbers, differs between traces, or mixes the examples of concrete inputs.

    >>> w = {"in": np.ones((4, 6), np.float32), "out": np.ones((6, 2), np.float32)}
    >>> stages, head = [lambda w, x: jnp.tanh(x @ w["in"])], lambda w, x: x @ w["out"]
    >>> model = tj.model_of(stages, w, inputs=np.zeros((1, 4), np.float32), head=head)
    >>> predict = tj.tangent(model, kind="everything")
    >>> predict(predict.zeros(), np.zeros((3, 4), np.float32)).shape
    (3, 2)
    """
    functions = (*stages, *([] if head is None else [head]))
    for s, f in enumerate(functions):
        if not (callable(f) and hashable(f)):
            raise InputError(f"stage {s} must be a function (w, x); got {type(f).__name__}. Wrap it in a lambda")
    if len(stages) < 1:
        raise InputError("stages must have at least one function; got none")
    flat, x = check_leaves(w), first_input(inputs, preprocessing)
    owner: dict[str, int] = {}
    shapes = [x.shape[1:]]
    for s, (stage, again) in enumerate(zip(trace_stages(functions, w, x), trace_stages(functions, w, x), strict=True)):
        if stage.program != again.program:
            raise InputError(
                f"stage {s} must be one program; got another at each trace. Draw it outside, and close over it"
            )
        shapes.append(stage.shape)
        owner = {**dict.fromkeys(stage.read, s), **owner}
    unread = sorted(flat.keys() - owner.keys())
    if unread:
        raise InputError(
            f"leaves of w must be read by a stage; got {', '.join(unread[:3])}, which none reads. Use the w that a "
            "stage is given, or leave the leaf out of w"
        )
    check_alone(functions, w, inputs, preprocessing)
    short = short_names(w)
    leaves = tuple(Leaf(path_of(short[n], owner[n], len(stages)), n, jnp.shape(v), owner[n]) for n, v in flat.items())
    if head is not None and len(shapes[-1]) != 1:
        raise InputError(f'outputs of the head must be "b c"; got shape {("b", *shapes[-1])}')
    classes = 0 if head is None else shapes[-1][0]
    taken = Arrays(str(x.dtype)) if preprocessing is None else preprocessing
    structure, input_shapes = jax.tree.structure(w), tuple(shapes[: len(stages) + 1])
    model = FunctionModel(tuple(stages), structure, leaves, input_shapes, taken, head, classes, dual)
    return Pretrained(model, trees.nest({leaf.path: jnp.asarray(flat[leaf.name]) for leaf in leaves}), "functions")


def hashable(f: Any) -> bool:
    """True if jit can hash the function; a module that holds arrays cannot be hashed."""
    try:
        return isinstance(hash(f), int)
    except TypeError:
        return False


def check_leaves(w: Any) -> dict[str, Any]:
    """The leaves by path; InputError for a leaf without a tangent, or a path that repeats."""
    flat = trees.leaves(w)
    for path, leaf in flat.items():
        dtype = getattr(leaf, "dtype", type(leaf).__name__)
        if dtype not in (jnp.float32, jnp.float64):
            raise InputError(
                f"{path or 'w'} must be an array of float32; got {dtype}. Leave it out of w: "
                "nnx.split(module, nnx.Param, ...), eqx.partition(module, eqx.is_inexact_array). Make an "
                "nnx.Param of whole numbers an nnx.Variable"
            )
    alone = [*trees.leaves(trees.nest(flat))] if all(flat) else []
    if not (flat and sorted(alone) == sorted(flat) and (len(flat) == len(jax.tree.leaves(w)))):
        raise InputError(f"w must be a tree with a path of its own for each leaf; got {[*flat][:3]}. Give w as a dict")
    return flat


def first_input(inputs: Any, preprocessing: Preprocessing | None) -> jax.ShapeDtypeStruct:
    """One example in the form that the first stage reads, "1 ..."."""
    shape, dtype = jnp.shape(inputs), jax.dtypes.canonicalize_dtype(jnp.result_type(inputs))
    if len(shape) < 2:
        raise InputError(f'inputs must be arrays "b ...", or their jax.ShapeDtypeStruct; got shape {shape}')
    if preprocessing is None:
        return jax.ShapeDtypeStruct((1, *shape[1:]), dtype)
    if not (len(shape) == 4 and shape[1] == shape[2] and (shape[3] == 3)):
        raise InputError(f'inputs must be square images "b y x 3"; got shape {shape}. Arrays have preprocessing=None')
    return jax.ShapeDtypeStruct((1, *shape[1:]), jnp.float32 if dtype == jnp.uint8 else dtype)


class Traced(NamedTuple):
    """A stage's program, the caller's paths of its leaves, the shape of one example of its result."""

    program: str
    read: list[str]
    shape: tuple[int, ...]


def trace_stages(functions: Sequence[Stage], w: Any, x: Any) -> Iterator[Traced]:
    """Yields every stage, traced for one example "1 ...".

    Raises:
        InputError: A function that fails, draws random numbers, or does not return an array of floats "1 ...".
    """
    for s, f in enumerate(map(partial, functions)):  # a fresh object, as JAX caches traces: code may change, or draw
        where = f"stage {s} of inputs {x.dtype} (b, {str(x.shape[1:])[1:]}"
        try:
            y = jax.eval_shape(f, w, x)
            drawn = primitives(f, w, x) & DRAWS
            program, read, _ = program_reading(f, w, x)
        except InputError:
            raise
        except Exception as error:
            do = f". {WRONG_SHAPES}" if isinstance(error, (TypeError, ValueError)) or changes_state(error) else ""
            raise InputError(f"{where} must be a function (w, x); got {failure(error)}{do}") from error
        if drawn:
            raise InputError(
                f"{where} must draw no random numbers; got {', '.join(sorted(drawn))}. Put dropout into evaluation: "
                "module.eval(), eqx.nn.inference_mode, deterministic=True"
            )
        if not (hasattr(y, "shape") and jnp.issubdtype(y.dtype, jnp.floating) and (y.shape[:1] == (1,))):
            given = jax.tree.map(lambda a: f"{a.dtype}{a.shape}", y)
            raise InputError(
                f'{where} must return one array of floats "b ..."; got {given}. Carry a mask as one more column'
            )
        yield Traced(identity(program, [*read]), [*read], y.shape[1:])
        x = y


def short_names(w: Any) -> dict[str, str]:
    """Each path of the caller's tree without the `/value` at which NNX holds a variable's array alone."""
    paths = jax.tree_util.tree_flatten_with_path(w)[0]
    ends = {keystr(path, simple=True, separator="/"): path[-1] for path, _ in paths}

    def short(name: str) -> str:
        above = name.removesuffix("value")
        is_variable = ends[name] == GetAttrKey("value") and above and sum(n.startswith(above) for n in ends) == 1
        return above.rstrip("/") if is_variable else name

    return {name: short(name) for name in ends}


def path_of(name: str, stage: int, last: int) -> str:
    """The path of a leaf here: `head/...` if and only if the head alone reads it."""
    if stage == last:
        return name if name.startswith("head/") else f"head/{name}"
    if name.startswith("head/"):
        raise InputError(
            f"paths head/... must be of leaves that the head alone reads; got {name} in {stage}. Rename it"
        )
    return name


def check_alone(functions: Sequence[Stage], w: Any, inputs: Any, preprocessing: Preprocessing | None) -> None:
    """Raises InputError if an example of concrete inputs gets other values beside another one than alone."""
    if isinstance(inputs, jax.ShapeDtypeStruct) or len(inputs) < 2:
        return
    x = jnp.asarray(inputs[:2])
    x = preprocessing.normalize(x) if preprocessing is not None and x.dtype == jnp.uint8 else x
    for s, f in enumerate(functions):
        beside, x = f(w, x), jnp.concatenate([f(w, x[:1]), f(w, x[1:])])
        apart, size = float(jnp.max(jnp.abs(beside - x))), float(jnp.max(jnp.abs(x)))
        if apart > 1e-2 * size:
            raise InputError(
                f"stage {s} must treat each example alone; got values up to {size:.2g} that move by {apart:.2g}. "
                "Use no statistics of the batch: module.eval(), use_running_average=True"
            )
