"""The small model and data of the examples in docstrings: three dense layers, four numbers in, three classes out.

The first layer is frozen, so features are its six outputs; the other two train. An example says `demo.predict`,
`demo.train`, ...; each is made at its first use and shared by all examples.
"""

import dataclasses
import tempfile
from functools import cached_property
from pathlib import Path

import jax
import numpy as np
from PIL import Image

import tangent_jax as tj
from tangent_jax import rules
from tangent_jax.core.notation import Dual


def layer(name):
    """A stage: a dense layer and relu."""
    return lambda w, x: jax.nn.relu(x @ w[name]["kernel"] + w[name]["bias"])


def closed_form(pairs, x, start=0):
    """The outputs and their tangent, by rules."""
    dx = None
    for name in ("first", "second")[start:]:
        x, dx = rules.relu(*rules.dense(x, dx, pairs[name]))
    return Dual(*rules.dense(x, dx, pairs["head"]))


class Demo:
    """What examples share."""

    @cached_property
    def root(self):
        """A folder that is deleted at the end."""
        return tempfile.TemporaryDirectory()

    def folder(self):
        """A new empty folder."""
        return Path(tempfile.mkdtemp(dir=self.root.name))

    def close(self):
        """Deletes the folder."""
        if "root" in self.__dict__:
            self.root.cleanup()

    @cached_property
    def model(self):
        """A `tj.Pretrained` of random weights."""
        rng = np.random.default_rng(0)
        w = {"first": {"kernel": rng.normal(size=(4, 6)) / 2, "bias": rng.normal(size=6) / 2}}
        w |= {"second": {"kernel": rng.normal(size=(6, 6)) / 2, "bias": rng.normal(size=6) / 2}}
        w, inputs = jax.tree.map(np.float32, w), jax.ShapeDtypeStruct((1, 4), np.float32)
        model = tj.model_of([layer("first"), layer("second")], w, inputs, dual=closed_form)
        return model.with_head(["a", "b", "c"], jax.random.key(0))

    @cached_property
    def predict(self):
        """Its `tj.Predictor`: the last two layers train."""
        return tj.tangent(self.model, blocks=1)

    def examples(self, count, seed):
        """Examples of three classes, each around a point of its own."""
        rng, labels = np.random.default_rng(seed), np.arange(count) % 3
        x = 2 * np.eye(4)[labels] + 0.5 * rng.normal(size=(count, 4))
        return tj.examples(x.astype(np.float32), labels, [f"{seed}-{row}" for row in range(count)])

    def features(self, count, seed):
        """Their `tj.Features`, in memory: removals erase what lies in a folder."""
        features = tj.extract(self.predict, self.examples(count, seed), tj.Cache(self.folder()))
        return dataclasses.replace(features, inputs=np.array(features.inputs), folder=None)

    @cached_property
    def train(self):
        """`tj.Features` of 24 examples."""
        return self.features(24, 0)

    @cached_property
    def test(self):
        """`tj.Features` of 12 other examples."""
        return self.features(12, 1)

    @cached_property
    def objective(self):
        """The paper's loss with a penalty of 0.1."""
        return tj.make_objective("rsl", penalty=0.1)

    @cached_property
    def fitted(self):
        """The optimum on `train`."""
        return tj.solve(self.predict, self.train, self.objective)

    @cached_property
    def dw(self):
        """Its tangent weights."""
        return self.fitted.dw

    @cached_property
    def halves(self):
        """The rows of `train` of two contributors."""
        return {"ann": np.arange(0, 12), "bob": np.arange(12, 24)}

    @cached_property
    def components(self):
        """The tangent weights of each contributor, by name."""
        parts = {name: self.train.take(rows) for name, rows in self.halves.items()}
        return {name: tj.solve(self.predict, part, self.objective).dw for name, part in parts.items()}

    @cached_property
    def curvature(self):
        """The Kronecker factors on `train`."""
        return tj.solver.make_curvature(self.predict, self.train, self.objective)

    @cached_property
    def factors(self):
        """The Kronecker factors of each component, by name."""
        parts = {name: self.train.take(rows) for name, rows in self.halves.items()}
        return {name: tj.solver.make_curvature(self.predict, part, self.objective) for name, part in parts.items()}

    def store(self):
        """A new `tj.Store` of the components."""
        store = tj.Store(self.folder() / "store")
        for name, dw in self.components.items():
            store.add(name, dw, self.origin.trained_on(self.train.take(self.halves[name]), 0.1))
        return store

    @cached_property
    def origin(self):
        """The provenance of the components, without their examples."""
        return tj.store.make_provenance(self.predict, tj.Recipe(), ["a", "b", "c"])

    def bird_store(self):
        """A new `tj.Store` of two heads on the embedded network, of the classes gull and owl, and owl and wren."""
        store, recipe = tj.Store(self.folder() / "store"), tj.Recipe(head="named", kind="head")
        for name, classes in (("ann", ("gull", "owl")), ("bob", ("owl", "wren"))):
            predict = recipe.predictor(classes)
            dw = jax.tree.map(lambda leaf: np.full(leaf.shape, len(store) + 1, np.float32), predict.zeros())
            origin = tj.store.make_provenance(predict, recipe, classes)
            store.add(name, dw, origin.trained_on(self.train.take(self.halves[name]), 0.1))
        return store

    @cached_property
    def map(self):
        """A `tj.models.FeatureMap`: the six inputs of the head."""
        return tj.models.feature_map(self.model, ("h",))

    @cached_property
    def statistics(self):
        """The sufficient statistics of `train`."""
        return tj.solver.make_statistics(self.map, self.train, ["a", "b", "c"])

    @cached_property
    def kernel(self):
        """The tangent kernel on `train`."""
        return tj.solver.make_kernel(self.predict, self.train, self.objective)

    @cached_property
    def solution(self):
        """The optimum by the kernel."""
        return self.kernel.solve()

    @cached_property
    def solved_rows(self):
        """(rows of J, their gram, the outputs at the optimum, targets) of `train`, as `tj.solver.expand` takes them."""
        rows, outputs = self.kernel.rows, self.solution.outputs()
        return rows, rows.gram(), outputs, self.train.targets

    def picture(self, seed=0):
        """An image, as Pillow has it."""
        return Image.fromarray(np.random.default_rng(seed).integers(0, 255, (4, 4, 3), np.uint8))

    @cached_property
    def vit_config(self):
        """A small Vision Transformer: one block of width 8 on images of 8 x 8 pixels."""
        return tj.models.ViTConfig(8, 1, 2, 16, patch_size=4, image_size=8, classes=3)
