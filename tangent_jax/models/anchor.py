"""The anchor: a pre-trained model, with changes that are made before it is linearised.

These are a new or frozen head, reset blocks (PT=F), a new class token (CLS=T), adapters and low-rank factors.
"""

import dataclasses
import hashlib
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import PRNGKeyArray, Shaped

from tangent_jax.core import trees
from tangent_jax.core.checks import InputError, whole_number
from tangent_jax.core.names import check_classes
from tangent_jax.core.notation import Tree
from tangent_jax.core.preprocessing import ImageSize, check_image_size
from tangent_jax.core.promotion import promotes
from tangent_jax.models.frozen_head import EMBEDDINGS, FrozenHead, WithFrozenHead
from tangent_jax.models.parametrize import LoRA, unwrap
from tangent_jax.models.protocol import Model, draw
from tangent_jax.models.session import FirstSession
from tangent_jax.models.subsets import Subset


class Resized(NamedTuple):
    """A change of the image size: the size before, and each leaf that it changed, before and after."""

    image_size: ImageSize
    leaves: dict[str, tuple[Shaped[Array, "..."], Shaped[Array, "..."]]]


@dataclasses.dataclass(frozen=True)
class Pretrained:
    """A model with its weights w (f32) and their source. Each method returns a new Pretrained.

    Attributes:
        resized: The positions before they were resampled, which another change of the image size begins with.
        session: The images on which the weights were fine-tuned to be an anchor, None for weights of others.
        class_names: What the file calls its head's outputs; () if it does not say, and for another head.

    Guarantees:
        w has exactly the leaves of the model, in its shapes.

    Raises:
        InputError: It names the first leaf that is missing, superfluous or of another shape.

    >>> with_names = demo.model.with_head(["owl", "gull"], jax.random.key(0))
    >>> with_names.w["head"]["kernel"].shape
    (6, 2)
    """

    model: Model
    w: Tree
    source: str
    resized: "Resized | None" = dataclasses.field(default=None, repr=False, compare=False)
    session: FirstSession | None = dataclasses.field(default=None, repr=False)
    class_names: tuple[str, ...] = dataclasses.field(default=(), repr=False)

    def __post_init__(self) -> None:
        if self.class_names and len(self.class_names) != self.model.classes:  # of another head than the file's
            object.__setattr__(self, "class_names", ())
        expected, w = self.model.shapes(), trees.leaves(self.w)
        for path in sorted(expected.keys() | w.keys()):
            shape, actual = expected.get(path), jnp.shape(w[path]) if path in w else None
            if shape != actual:
                if path not in expected:
                    raise InputError(f"w must have the model's leaves alone; got {path}, which it lacks")
                raise InputError(f"{path} of w must have shape {shape}; got {actual or 'none'}")

    @promotes
    def with_head(self, classes: int | Sequence[str], key: PRNGKeyArray) -> "Pretrained":
        """The model with a freshly drawn head; its other leaves stay.

        Args:
            classes: The number of outputs, 1 for regression; or the names of the classes. Each class is then drawn by
                its name: it gets the same numbers in heads of other classes, in any order.
        """
        if isinstance(classes, int | np.integer):
            model = self.model.with_classes(whole_number("classes", classes, 1, 1 << 20))
            w = {**self.w, **draw(model, head_paths(model), key)}
            return dataclasses.replace(self, model=model, w=w, class_names=())
        names = check_classes(classes)
        trees.check_key(key)
        single, keys = self.model.with_classes(1), jnp.stack([name_key(key, name) for name in names])
        columns = jax.vmap(lambda own: draw(single, head_paths(single), own)["head"])(keys)
        head = jax.tree.map(lambda leaf: jnp.moveaxis(leaf[..., 0], 0, -1), columns)
        model = self.model.with_classes(len(names))
        return dataclasses.replace(self, model=model, w={**self.w, "head": head}, class_names=())

    def with_scaled_head(self, scale: float) -> "Pretrained":
        """The model with a head multiplied by `scale`, which scales every tangent below the head."""
        return dataclasses.replace(self, w={**self.w, "head": jax.tree.map(lambda leaf: scale * leaf, self.w["head"])})

    def with_frozen_head(self, head: FrozenHead) -> "Pretrained":
        """The model as the image encoder below a frozen head: outputs compare embeddings of images and classes.

        Raises:
            InputError: If the widths differ, and for a model with LoRA or a frozen head.
        """
        model = WithFrozenHead(self.model, head.embeddings.shape[::-1])
        flat = model.of_base(trees.leaves(self.w)) | {EMBEDDINGS: head.leaf()}
        return dataclasses.replace(self, model=model, w=trees.nest(flat), class_names=())

    def with_class_token(self, blocks: int, key: PRNGKeyArray) -> "Pretrained":
        """CLS=T: a new class token, N(0, (1e-6)^2), replaces the old one below the last `blocks` blocks.

        Raises:
            InputError: A model that has a new class token already.
        """
        return self._with_new(self._able("with_class_token")(blocks), key)

    def with_adapters(self, width: int, blocks: int, key: PRNGKeyArray) -> "Pretrained":
        """Adds adapters of a width to the last `blocks` blocks; at first they change nothing (Houlsby et al. 2019).

        Raises:
            InputError: A model that has adapters already.
        """
        return self._with_new(self._able("with_adapters")(width, blocks), key)

    def with_lora(self, rank: int, blocks: int, key: PRNGKeyArray) -> "Pretrained":
        """Adds low-rank factors to every kernel of the last `blocks` blocks; at first they change nothing (LoRA).

        Raises:
            InputError: A model that has them already.
        """
        return self._with_new(LoRA(self.model, rank, blocks), key)

    def _with_new(self, model: Model, key: PRNGKeyArray) -> "Pretrained":
        """The model, with the leaves drawn that w lacks."""
        here = trees.leaves(self.w)
        new = trees.leaves(draw(model, [path for path in model.shapes() if path not in here], key))
        return dataclasses.replace(self, model=model, w=trees.nest(here | new))

    def reset(self, subset: Subset, key: PRNGKeyArray) -> "Pretrained":
        """PT=F: draws the trained leaves again, before linearising; a draw depends on key and path."""
        others = sorted({*subset.paths} - self.model.shapes().keys())
        if others:
            raise InputError(f"subset must be of this model's leaves; got {', '.join(others[:3])}")
        return dataclasses.replace(self, w=trees.replace(self.w, draw(self.model, list(subset.paths), key)))

    def with_body(self, w: Tree, session: FirstSession | None = None) -> "Pretrained":
        """The model with the leaves of `w` but for its head, as the anchor of a first session.

        Raises:
            InputError: Other leaves than the model's.
        """
        own = {name: leaf for name, leaf in self.w.items() if name == "head"}
        return dataclasses.replace(self, w={**trees.body(w), **own}, resized=None, session=session)

    def with_image_size(self, image_size: ImageSize) -> "Pretrained":
        """The model at another image size in pixels, a side or (height, width).

        A learned position embedding is resampled from the image size of the file, also after another change of the
        size: `with_image_size(a).with_image_size(b)` is `with_image_size(b)`.
        """
        check_image_size(image_size)
        first, before = self._before_resizing()
        model, w = self._able("with_image_size", first)(before, image_size)
        after = trees.leaves(w)
        changed = {
            path: (leaf, after[path])
            for path, leaf in trees.leaves(before).items()
            if path in after and after[path] is not leaf
        }
        resized = Resized(first.image_size, changed) if changed else None
        return dataclasses.replace(self, model=model, w=w, resized=resized)

    def _before_resizing(self) -> tuple[Model, Tree]:
        """The model and its weights at the image size before it was changed, unless the changed leaves moved since."""
        now, resized = trees.leaves(self.w), self.resized
        if resized is None or any(now.get(path) is not after for path, (_, after) in resized.leaves.items()):
            return self.model, self.w
        model, _ = self._able("with_image_size")(self.w, resized.image_size)
        return model, trees.nest(now | {path: before for path, (before, _) in resized.leaves.items()})

    def _able(self, method: str, model: Model | None = None) -> Any:
        model = self.model if model is None else model
        base, _ = unwrap(model)
        if not hasattr(model, method):
            do = ". Do it before with_lora and with_frozen_head" if hasattr(base, method) else ""
            raise InputError(
                f"{method} needs a model that has it, such as a VisionTransformer; got {type(model).__name__}{do}"
            )
        return getattr(model, method)


def head_paths(model: Model) -> list[str]:
    """The leaves of the head; the last axis of each is the classes."""
    return [path for path in model.shapes() if path.startswith("head/")]


def name_key(key: PRNGKeyArray, name: str) -> PRNGKeyArray:
    """The key of a class, from 64 bits of the hash of its name: a million names have distinct keys."""
    words = np.frombuffer(hashlib.sha256(name.encode()).digest()[:8], "<u4")
    return jax.random.fold_in(jax.random.fold_in(key, int(words[0])), int(words[1]))


def fingerprints(w: Tree) -> tuple[str, str]:
    """The fingerprints of an anchor without its head, and of its head."""
    return trees.fingerprint(trees.body(w)), trees.fingerprint(w.get("head", {}))
