"""The anchor: a pre-trained model, and the parts that it gets before it is linearised.

A new head, reset blocks (PT=F), a new class token (CLS=T), adapters, low-rank factors.
"""

import dataclasses
from typing import Any

import jax.numpy as jnp
from jax import Array

from tangent_jax.core import Tree, require, trees, whole_number
from tangent_jax.data.preprocessing import ImageSize, check_image_size
from tangent_jax.models.parametrize import LoRA, unwrapped
from tangent_jax.models.protocol import Model, draw
from tangent_jax.models.subsets import Subset


@dataclasses.dataclass(frozen=True)
class Pretrained:
    """A model with its weights w (f32) and their source. Each method returns a new one and changes nothing.

    Guarantees: w has exactly the leaves of the model, in its shapes.
    Raises:     InputError naming the first leaf that is missing, too many or of another shape.
    """

    model: Model
    w: Tree
    source: str

    def __post_init__(self) -> None:
        expected, w = self.model.shapes(), trees.leaves(self.w)
        for path in sorted(expected.keys() | w.keys()):
            shape, actual = expected.get(path), jnp.shape(w[path]) if path in w else None
            wanted = f"{path} of shape {shape}" if path in expected else f"no leaf {path}"
            got = f"shape {actual}" if path in w else "none"
            require(shape == actual, "Pretrained", f"{wanted}, as the model has it", got)

    def with_head(self, classes: int, key: Array) -> "Pretrained":
        """The model with a freshly drawn head of `classes` outputs, 1 for a number; its other leaves stay."""
        classes = whole_number("with_head", "classes", classes, 1, 1 << 20)
        model = self.model.with_classes(classes)
        head = [path for path in model.shapes() if path.startswith("head/")]
        return dataclasses.replace(self, model=model, w={**self.w, **draw(model, head, key)})

    def with_class_token(self, blocks: int, key: Array) -> "Pretrained":
        """CLS=T: a new class token, N(0, (1e-6)^2), takes the old one's place below the last `blocks` blocks.

        Raises: InputError for a model that has one already.
        """
        return self._with_new(self._able("with_class_token")(blocks), key)

    def with_adapters(self, width: int, blocks: int, key: Array) -> "Pretrained":
        """Adapters of a width in the last `blocks` blocks, which change nothing yet (Houlsby et al. 2019).

        Raises: InputError for a model that has adapters already.
        """
        return self._with_new(self._able("with_adapters")(width, blocks), key)

    def with_lora(self, rank: int, blocks: int, key: Array) -> "Pretrained":
        """Low-rank factors beside every kernel of the last `blocks` blocks, which change nothing yet (LoRA).

        Raises: InputError for a model that has them already.
        """
        return self._with_new(LoRA(self.model, rank, blocks), key)

    def _with_new(self, model: Model, key: Array) -> "Pretrained":
        """The model with those of its leaves drawn that w has not."""
        here = trees.leaves(self.w)
        new = trees.leaves(draw(model, [path for path in model.shapes() if path not in here], key))
        return dataclasses.replace(self, model=model, w=trees.nest(here | new))

    def reset(self, subset: Subset, key: Array) -> "Pretrained":
        """PT=F: the trained leaves are drawn afresh, before linearising; a leaf's draw depends on key and path."""
        others = sorted({*subset.paths} - self.model.shapes().keys())
        require(not others, "reset", "a subset of this model's leaves", ", ".join(others[:3]))
        return dataclasses.replace(self, w=trees.replace(self.w, draw(self.model, list(subset.paths), key)))

    def resized(self, image_size: ImageSize) -> "Pretrained":
        """The model at another image size in pixels, a side or (height, width), its position embedding resampled."""
        check_image_size("resized", image_size)
        model, w = self._able("resized")(self.w, image_size)
        return dataclasses.replace(self, model=model, w=w)

    def _able(self, method: str) -> Any:
        kind, (base, _) = type(self.model).__name__, unwrapped(self.model)
        do = "Do it before with_lora" if hasattr(base, method) else ""
        require(hasattr(self.model, method), method, "a model that can do it, such as a VisionTransformer", kind, do)
        return getattr(self.model, method)


def fingerprints(w: Tree) -> tuple[str, str]:
    """The fingerprints of an anchor without its head, and of its head."""
    return trees.fingerprint({name: leaf for name, leaf in w.items() if name != "head"}), trees.fingerprint(w["head"])
