"""A second model, of the protocol alone, goes wherever the ViT goes."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import pictures

from tangent_jax import rules
from tangent_jax.composition.compose import compose
from tangent_jax.core import trees
from tangent_jax.core.notation import Dual
from tangent_jax.core.preprocessing import Preprocessing
from tangent_jax.exports.folder import export, load_export
from tangent_jax.features.extract import Cache, extract
from tangent_jax.models.anchor import Pretrained
from tangent_jax.models.predict import tangent
from tangent_jax.models.protocol import initial_weights
from tangent_jax.store.provenance import make_provenance
from tangent_jax.store.store import Store
from tangent_jax.store.verification import verify
from tangent_jax.train.evaluate import evaluate
from tangent_jax.train.fit import fit
from tangent_jax.train.optimizers import adam


@dataclasses.dataclass(frozen=True)
class Perceptron:
    """Two dense layers with a norm: stage 0 flattens, stage 1 is hidden, stage 2 the head."""

    width: int = 9
    image_size: int = 4
    classes: int = 3
    preprocessing: Preprocessing = Preprocessing(crop=1.0)  # noqa: RUF009
    stages = 3

    @property
    def settings(self):
        return {"width": self.width, "image_size": self.image_size, "classes": self.classes}

    def shapes(self):
        d, f = 3 * self.image_size**2, self.width
        hidden = {"hidden/kernel": (d, f), "hidden/bias": (f,), "norm/scale": (f,), "norm/bias": (f,)}
        return {**hidden, "head/kernel": (f, self.classes), "head/bias": (self.classes,)}

    def stage_of(self, path):
        return 2 if path.startswith("head/") else 1

    def input_shape(self, stage):
        return [(self.image_size, self.image_size, 3), (3 * self.image_size**2,), (self.width,)][stage]

    def initial(self, path, key):
        shape = self.shapes()[path]
        return jnp.ones(shape) if path == "norm/scale" else 0.3 * jax.random.normal(key, shape)

    def apply(self, w, x, start=0, stop=None):
        x = x.reshape(len(x), -1) if start == 0 else x
        if start <= 1 and stop != 1:
            x = x @ w["hidden"]["kernel"] + w["hidden"]["bias"]
            x = (x - x.mean(-1, keepdims=True)) / jnp.sqrt(x.var(-1, keepdims=True) + 1e-6)
            x = jax.nn.gelu(x * w["norm"]["scale"] + w["norm"]["bias"], approximate=False)
        return x @ w["head"]["kernel"] + w["head"]["bias"] if stop is None else x

    def dual(self, pairs, x, start=0):
        x, dx = x.reshape(len(x), -1) if start == 0 else x, None
        if start <= 1:
            x, dx = rules.layer_norm(*rules.dense(x, dx, pairs["hidden"]), pairs["norm"], 1e-6)
            x, dx = rules.ACTIVATIONS["gelu"](x, dx)
        return Dual(*rules.dense(x, dx, pairs["head"]))

    def with_classes(self, classes):
        return dataclasses.replace(self, classes=classes)

    def to_world(self, flat):
        return {path.replace("/", "."): leaf for path, leaf in flat.items()}

    def from_world(self, tensors):
        return {name.replace(".", "/"): leaf for name, leaf in tensors.items()}


def pretrained(dtype=jnp.float32):
    model = Perceptron()
    return Pretrained(model, trees.cast(initial_weights(model, jax.random.key(0)), dtype), "here")


@pytest.mark.parametrize(("kind", "blocks", "stage"), [("blocks", 0, 2), ("blocks", 1, 1), ("everything", 0, 1)])
def test_protocol_model_is_fitted_and_exported(tmp_path, kind, blocks, stage):
    predict = tangent(pretrained(), blocks, kind)
    assert predict.subset.stage == stage
    data = extract(predict, pictures(), Cache(tmp_path / "cache"))
    assert data.inputs.shape == (60, *predict.model.input_shape(stage))
    store = Store(tmp_path / "store")
    origin = make_provenance(predict)
    for s in range(2):
        half = data.take(np.arange(s, 60, 2))
        fitted = fit(predict, half.batches(jax.random.key(s)), optimizer=adam(0.1), epochs=40)
        store.add(f"half {s}", fitted.dw, origin.trained_on(half, fitted.seconds))
    dw = store.compose()
    assert evaluate(predict, dw, data) > 0.8
    assert trees.fingerprint(dw) == trees.fingerprint(compose(store))
    export(tmp_path / "export", predict, dw, {})
    again, step = load_export(tmp_path / "export", predict.model)
    assert trees.fingerprint(again.w) == trees.fingerprint(predict.w)
    assert trees.fingerprint(step) == trees.fingerprint(dw)
    assert verify(store) == []
