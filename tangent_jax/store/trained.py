"""What a component trains: some leaves at an anchor, which is made from pre-trained weights, and the head above them.

    Tangent(leaves, head)    f_w(x) + J_w f(x) . dw                leaves    OwnLeaves | Adapters | LowRank | HeadAlone
    Network(leaves, head)    f_{w + dw}(x)                         head      NewHead | HeadFile

A seed draws all that is new. The names of these classes stand in stores.
"""

import dataclasses
from collections.abc import Sequence
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
from jax import Array

from tangent_jax.core.checks import InputError, finite_number, one_of
from tangent_jax.io.records import Tagged
from tangent_jax.models.anchor import Pretrained
from tangent_jax.models.predict import Predictor, nonlinear, tangent
from tangent_jax.models.subsets import KINDS, MADE, make_subset
from tangent_jax.pretrained.frozen_head import read_frozen_head


class Leaves(Tagged):
    """The trained leaves, and the changes of the pre-trained model that they need; each draws its own numbers."""

    kind = "head"
    blocks = 0
    new_class_token = False
    reset = False

    def below_head(self, pretrained: Pretrained, token: Array, fresh: Array) -> Pretrained:
        """The model with the changes below its head."""
        return pretrained.with_class_token(self.blocks, token) if self.new_class_token else pretrained

    def with_head(self, pretrained: Pretrained, fresh: Array) -> Pretrained:
        """The model with the changes that need its head."""
        if not self.reset:
            return pretrained
        return pretrained.reset(make_subset(pretrained.model, self.kind, self.blocks), fresh)


@dataclasses.dataclass(frozen=True)
class HeadAlone(Leaves):
    """The head alone: a linear probe (FC).

    Attributes:
        reset: Draw it once more, by the key of reset leaves (the paper's PT=F).

    >>> tj.Recipe(trained=tj.store.Tangent(tj.store.HeadAlone())).predictor(10).subset.paths
    ('head/bias', 'head/kernel')
    """

    reset: bool = False


@dataclasses.dataclass(frozen=True)
class OwnLeaves(Leaves):
    """Leaves of the pre-trained network, in its last `blocks` blocks, and the head.

    Attributes:
        kind: Which ones, as `make_subset`.
        new_class_token: A new class token in these blocks (the paper's CLS=T).
        reset: Draw the leaves again before linearising (the paper's PT=F).

    >>> tj.Recipe(trained=tj.store.Tangent(tj.store.OwnLeaves(2, "bitfit"))).predictor(10).subset.name
    'bitfit-2'
    """

    blocks: int = 1
    kind: str = "blocks"
    new_class_token: bool = False
    reset: bool = False

    def __post_init__(self) -> None:
        one_of("kind", self.kind, [kind for kind in KINDS if kind not in (*MADE, "head")])


@dataclasses.dataclass(frozen=True)
class Adapters(Leaves):
    """New adapters of a width (`rank`) in the last `blocks` blocks, and the head.

    >>> tj.Recipe(trained=tj.store.Network(tj.store.Adapters(rank=4))).predictor(10).subset.name
    'adapter-1'
    """

    blocks: int = 1
    rank: int = 8
    new_class_token: bool = False
    kind = "adapter"

    def below_head(self, pretrained: Pretrained, token: Array, fresh: Array) -> Pretrained:
        return super().below_head(pretrained, token, fresh).with_adapters(self.rank, self.blocks, fresh)


@dataclasses.dataclass(frozen=True)
class LowRank(Leaves):
    """New low-rank factors (LoRA) of a rank in the last `blocks` blocks, and the head; a tangent trains B alone.

    Attributes:
        kind: lora, both factors, or lora_b.

    >>> tj.Recipe(trained=tj.store.Tangent(tj.store.LowRank(rank=4))).predictor(10).subset.name
    'lora_b-1'
    """

    blocks: int = 1
    rank: int = 8
    new_class_token: bool = False
    kind: str = "lora"

    def __post_init__(self) -> None:
        one_of("kind", self.kind, ("lora", "lora_b"))

    def with_head(self, pretrained: Pretrained, fresh: Array) -> Pretrained:
        return pretrained.with_lora(self.rank, self.blocks, fresh)


@dataclasses.dataclass(frozen=True)
class NewHead(Tagged):
    """A new head, drawn N(0, 0.01^2) times `scale`.

    Attributes:
        by_name: Draw each class by its name, so that heads of other classes join and a component has only the classes
            of its images.

    >>> tj.Recipe(trained=tj.store.Tangent(head=tj.store.NewHead(by_name=True))).is_by_class
    True
    """

    by_name: bool = False
    scale: float = 1.0
    file: ClassVar[None] = None

    def __post_init__(self) -> None:
        finite_number("head_scale", self.scale, 0.0)

    def on(self, pretrained: Pretrained, classes: int | Sequence[str], key: Array) -> Pretrained:
        """The model with a head of these classes, before it is scaled."""
        if self.by_name:
            return pretrained.with_head(names_of(classes, "named"), key)
        return pretrained.with_head(classes if isinstance(classes, int) else len(classes), key)


@dataclasses.dataclass(frozen=True)
class HeadFile(Tagged):
    """The frozen head in a file, as `read_frozen_head` reads it.

    >>> tj.store.HeadFile("head.safetensors").by_name
    False
    """

    file: str
    by_name: ClassVar[bool] = False
    scale: ClassVar[float] = 1.0

    def __post_init__(self) -> None:
        check_printable("head", self.file)

    def on(self, pretrained: Pretrained, classes: int | Sequence[str], key: Array) -> Pretrained:
        """The model with the head's rows of these classes."""
        return pretrained.with_frozen_head(read_frozen_head(self.file).of_classes(names_of(classes, self.file)))


@dataclasses.dataclass(frozen=True)
class Trained(Tagged):
    """The leaves and the head of a Tangent or a Network; `linearization` and `dtype` as in `Predictor`."""

    leaves: OwnLeaves | Adapters | LowRank | HeadAlone = OwnLeaves()
    head: NewHead | HeadFile = NewHead()
    linearization: str = "closed_form"
    dtype: str = "float32"

    def predictor(self, pretrained: Pretrained, classes: int | Sequence[str], key: Array) -> Predictor:
        """The predictor at its anchor: the order of the changes, and the key of each, decide the anchor's bits."""
        head, token, fresh = jax.random.split(key, 3)
        below = self.leaves.below_head(pretrained, token, fresh)
        anchor = self.leaves.with_head(self.head.on(below, classes, head), fresh)
        dtype = None if self.dtype == "float32" else jnp.dtype(self.dtype)
        return self.at(anchor.with_scaled_head(self.head.scale), linearization=self.linearization, dtype=dtype)

    def at(self, anchor: Pretrained, **options: Any) -> Predictor:
        """The predictor at this anchor."""
        raise NotImplementedError


@dataclasses.dataclass(frozen=True)
class Tangent(Trained):
    """The linearized model (taft); `output`: f_w(x) + J dw ("total"), or J dw alone ("tangent").

    >>> tj.Recipe(trained=tj.store.Tangent(output="tangent")).predictor(10).output
    'tangent'
    """

    output: str = "total"
    is_linear: ClassVar[bool] = True

    def at(self, anchor: Pretrained, **options: Any) -> Predictor:
        kind = {"lora": "lora_b"}.get(self.leaves.kind, self.leaves.kind)  # at B = 0 the tangent in A is zero
        return tangent(anchor, self.leaves.blocks, kind, output=self.output, **options)


@dataclasses.dataclass(frozen=True)
class Network(Trained):
    """The network itself, fine-tuned non-linearly (nlft).

    >>> tj.Recipe(trained=tj.store.Network()).predictor(10).method
    'nlft'
    """

    output: ClassVar[str] = "total"
    is_linear: ClassVar[bool] = False

    def at(self, anchor: Pretrained, **options: Any) -> Predictor:
        return nonlinear(anchor, self.leaves.blocks, self.leaves.kind, **options)


def names_of(classes: int | Sequence[str], head: str) -> Sequence[str]:
    """The names of the classes; InputError for a number: a named or frozen head needs class names."""
    if isinstance(classes, int):
        raise InputError(f"classes must be names for the head {head}; got {classes}. Pass the names.")
    return classes


def check_printable(name: str, text: str) -> None:
    """Raises InputError for a text with characters that do not show."""
    if not text.isprintable():
        raise InputError(f"{name} must have only characters that show; got {text!r}.")
