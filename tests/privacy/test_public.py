"""Public images: whitened coordinates, the same mechanism in them, and what is refused."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import MODERN, assert_rel_close, images, private_task, scale_accepted, small, tree_normal

from tangent_jax.core import trees
from tangent_jax.core.checks import InputError
from tangent_jax.exports.folder import export
from tangent_jax.io.ledger import Ledger
from tangent_jax.models.anchor import Pretrained
from tangent_jax.models.frozen_head import FrozenHead
from tangent_jax.models.functions import model_of
from tangent_jax.models.predict import tangent
from tangent_jax.models.protocol import initial_weights
from tangent_jax.models.resnet.config import ResNetConfig
from tangent_jax.models.resnet.model import ResNet
from tangent_jax.models.whitened import ROOT, WHITENED
from tangent_jax.privacy.clipping import clipped_sum
from tangent_jax.privacy.mechanism import make_mechanism
from tangent_jax.privacy.norms import clipped_sum_closed_form
from tangent_jax.privacy.public import DAMPING, unwhiten, whiten
from tangent_jax.privacy.train import fit_private
from tangent_jax.solver.problem import make_curvature
from tangent_jax.train.features import Features
from tangent_jax.train.losses import CrossEntropy
from tangent_jax.train.objective import make_objective
from tangent_jax.train.optimizers import momentum

CE = CrossEntropy()
CLOSED = jax.jit(functools.partial(clipped_sum_closed_form, loss=CE))
VMAPPED = jax.jit(functools.partial(clipped_sum, loss=CE))
KEY = jax.random.key(0)
ONE_STEP = make_mechanism(3.0, 1e-5, steps=1, clip_norm=0.5)


def of(x, name):
    """Features of inputs whose contents are called `name`, with labels that fit no head."""
    x = np.asarray(x)
    return Features(x, np.full(len(x), 99), tuple((f"{name} {i}", f"{name}{i}.png") for i in range(len(x))))


def public_of(x, count=5):
    return of(0.7 * np.asarray(x)[::-1][:count], "public")


def task(*arguments, **options):
    """A predictor, the same whitened by five images or by norms, a step of that, six inputs and their labels."""
    return task_of(bool(jax.config.jax_enable_x64), *arguments, **options)


@functools.cache
def task_of(_, *arguments, by="images", **options):
    predict, _, x, y = private_task(*arguments, **options)
    own = whiten(predict, public_of(x), of(x, "private")) if by == "images" else whiten(predict)
    return predict, own, tree_normal(5, own.zeros()), x, y


def by_hand(predict, own, v, x, y):
    """Each example's gradient at the same dw of the predictor itself, whitened leaf by leaf: R^T g in each head."""
    dw, axes, w = unwhiten(own, v), dict(own.model.layouts), trees.leaves(own.w)
    one = jax.grad(lambda dw, x, y: CE(predict(dw, x[None]), y[None])[0])
    gradients = trees.leaves(jax.jit(jax.vmap(one, (None, 0, 0)))(dw, x, y))
    for path in axes:
        g = gradients.pop(path)
        blocks = [np.swapaxes(w[path + ROOT], 1, 2) @ np.asarray(axes[path].blocks(own)) for own in g]
        gradients[path + WHITENED] = np.stack([axes[path].kernel(own, g.shape[1:]) for own in blocks])
    return trees.nest(gradients)


@pytest.mark.parametrize(
    ("kind", "blocks", "variant"),
    [
        ("head", 1, {}),
        ("blocks", 1, {}),
        ("head", 1, {"by": "norms"}),
        ("blocks", 2, {"by": "norms"}),
        *(
            pytest.param(kind, blocks, variant, marks=pytest.mark.long)
            for kind, blocks, variant in [
                *((kind, 2, {}) for kind in ("blocks", "bitfit", "layernorm")),
                ("blocks", 1, {"pool": "avg"}),
                ("blocks", 1, {"positions": "rotary", "registers": 2, "width": 24}),
                ("blocks", 1, {"method": "nlft"}),
            ]
        ),
    ],
)
def test_norms_are_of_whitened_gradients(x64, kind, blocks, variant):
    predict, own, v, x, y = task(kind, blocks, **variant)
    gradients = by_hand(predict, own, v, x, y)
    norms = np.sqrt(sum(np.square(g).reshape(len(y), -1).sum(1) for g in jax.tree.leaves(gradients)))
    clip_norm = float(np.median(norms))
    scales = np.minimum(1, clip_norm / norms)
    want = jax.tree.map(lambda g: jnp.asarray(np.tensordot(scales, g, 1)), gradients)
    closed = CLOSED(own, v, x, y, jnp.ones(len(y)), clip_norm=clip_norm)
    assert_rel_close(closed.norms, jnp.asarray(norms))
    assert_rel_close(closed.value, want)
    assert closed.sensitivity == clip_norm
    vmapped = VMAPPED(own, v, x, y, jnp.ones(len(y)), clip_norm=clip_norm)
    assert_rel_close(vmapped.value, want)


def test_roots_whiten_public_moments(x64):
    predict, own, _, x, _ = task("blocks", 1)
    public = public_of(x)
    unlabelled = dataclasses.replace(public, targets=np.zeros((len(public), 7)))
    factors = make_curvature(predict, unlabelled, make_objective("mse", penalty=0.0))
    assert len(factors.kernels) == 7
    for path, (a, _) in factors.kernels.items():
        mean = np.trace(a, axis1=1, axis2=2).mean() / a.shape[-1]
        root, m = np.asarray(trees.leaves(own.w)[path + ROOT]), a / mean + DAMPING * np.eye(a.shape[-1])
        for r, block in zip(root, m, strict=True):
            np.testing.assert_allclose(r.T @ block @ r, np.eye(len(r)), atol=1e-10)


def standardised(predict, x):
    """For each kernel of the subset: whether it multiplies rows g x^ + b of a norm of the subset's model, by norm."""
    w, found = trees.leaves(predict.w), {}
    norms = sorted(path.removesuffix("/scale") for path in w if "norm" in path and path.endswith("/scale"))
    uses = []

    @jax.jit
    def inputs(predict, x):
        uses.extend(predict.probe(predict.zeros(), x, at_zero=True).uses)
        return [use.x for use in uses]

    for rows, use in zip(inputs(predict, x), uses, strict=True):
        for norm in norms if use.spec is not None else ():
            g, b = (np.asarray(w[f"{norm}/{name}"]) for name in ("scale", "bias"))
            if rows.shape[-1:] != g.shape:
                continue
            x_hat = (np.asarray(rows) - b) / g
            if np.allclose(x_hat.mean(-1), 0, atol=1e-8) and np.allclose(x_hat.var(-1), 1, atol=1e-3):
                found[use.path] = norm
    return found


MODELS = {
    "token": {},
    "avg": {"pool": "avg"},
    **MODERN,
    **{pool: {"pool": pool} for pool in ("norm_avg", "plain_avg", "token_avg")},
    "adapters": {"adapter_width": 3},
}


@pytest.mark.parametrize("name", [*MODELS, "lora", "projection"])
def test_model_states_norms_of_its_kernels(x64, name):
    model, w = small(**MODELS.get(name, {}))
    made = Pretrained(model, w, "here")
    if name == "projection":
        made = made.with_frozen_head(FrozenHead(("owl", "gull"), np.eye(2, 7)))
    if name == "lora":
        made = made.with_lora(2, 2, KEY)
    made = dataclasses.replace(made, w=trees.cast(made.w, float))
    predict = tangent(made, kind=lambda path: not path.startswith("head/embeddings"))
    x = jnp.asarray(images(3, made.model.image_size), float)
    assert made.model.input_norms == standardised(predict, x)
    assert set(made.model.input_norms) <= set(made.model.shapes())
    bare = small(**{**MODELS.get(name, {}), "classes": 0})[0]
    assert not [path for path in bare.input_norms if path not in bare.shapes()]


def test_whitening_by_norms_reads_no_image(x64):
    predict, own, _, _, _ = task("blocks", 2, by="norms")
    w, norms = trees.leaves(own.w), predict.model.input_norms
    assert {path for path, _ in own.model.layouts} == {*norms}
    assert {path.removesuffix(WHITENED) for path in own.subset.paths} == {*predict.subset.paths}
    rng = np.random.default_rng(0)
    for path, norm in norms.items():
        s, b = w[f"{norm}/scale"], w[f"{norm}/bias"]
        rows = s * rng.choice([-1.0, 1.0], (4096, len(s))) + b  # of zero mean and unit variance
        a, root = rows.T @ rows / len(rows), np.asarray(w[path + ROOT])
        m = a / np.trace(a) * len(s) + DAMPING * np.eye(len(s))
        assert root.shape == (1, len(s), len(s))
        np.testing.assert_allclose(root[0].T @ m @ root[0], np.eye(len(s)), atol=0.2)
    resnet = ResNet(ResNetConfig((1, 1), False, 4, stem="small", image_size=8, classes=3))
    plain = tangent(Pretrained(resnet, initial_weights(resnet, KEY), "here"))
    assert whiten(plain) is plain
    head = tangent(Pretrained(*small(pool="plain_avg"), "here"), kind="head")
    assert whiten(head) is head


def test_outputs_are_of_natural_coordinates(x64):
    predict, own, v, x, _ = task("blocks", 1)
    dw = unwhiten(own, v)
    assert {path: leaf.shape for path, leaf in trees.leaves(own.w).items()} == own.model.shapes()
    assert_rel_close(jax.tree.map(jnp.zeros_like, dw), predict.zeros())
    assert_rel_close(own(v, x), predict(dw, x))
    assert_rel_close(unwhiten(predict, dw), dw)
    with pytest.raises(InputError, match="dw must be a part of w"):
        predict(v, x)
    with pytest.raises(InputError, match="dw must be in whitened coordinates"):
        own(dw, x)


def test_one_example_moves_whitened_sum_by_clip(x64):
    _, own, v, x, y = task("blocks", 1)
    for clip_norm in (1e-3, 10.0):
        whole = CLOSED(own, v, x, y, jnp.ones(6), clip_norm=clip_norm)
        for gone in (0, 3):
            left = CLOSED(own, v, x, y, jnp.ones(6).at[gone].set(0), clip_norm=clip_norm)
            moved = trees.plus(whole.value, trees.scale(-1.0, left.value))
            assert float(jnp.sqrt(trees.squared_norm(moved))) <= clip_norm * (1 + 1e-12)
    alone = CLOSED(own, v, x, y, jnp.zeros(6).at[0].set(1), clip_norm=1e-3)
    assert float(jnp.sqrt(trees.squared_norm(alone.value))) > 0.999e-3


def test_noise_is_scaled_in_whitened_coordinates():
    _, own, _, x, y = task("blocks", 1)
    data, rate = dataclasses.replace(of(x, "private"), targets=np.asarray(y)), 2.0
    fitted = fit_private(own, data, mechanism=ONE_STEP, optimizer=momentum(rate), seed=3)
    total = CLOSED(own, own.zeros(), x, y, jnp.ones(6), clip_norm=0.5)
    noise = jax.tree.map(lambda v, s: -np.asarray(v) / rate * 0.5 * 6 - np.asarray(s), fitted.dw, total.value)
    scale, of_step = 0.5 * ONE_STEP.noise_multiplier, trees.leaves(unwhiten(own, noise))
    flat = np.concatenate([leaf.ravel() for leaf in jax.tree.leaves(noise)])
    whitened_again = []
    for path, axes in own.model.layouts:
        inverse = np.linalg.inv(np.asarray(trees.leaves(own.w)[path + ROOT], np.float64))
        whitened_again.append((inverse @ np.asarray(axes.blocks(of_step[path]))).ravel())
    kernels = np.concatenate([of_step[path].ravel() for path, _ in own.model.layouts])
    for draws in (flat, np.concatenate(whitened_again)):
        assert scale_accepted(draws, scale)
        assert not scale_accepted(draws, scale * 2 / 3)
        assert not scale_accepted(draws, scale * 3 / 2)
    assert not scale_accepted(kernels, scale)


def test_other_public_images_are_another_run(tmp_path):
    predict, own, _, x, y = task("head", 1)
    data = dataclasses.replace(of(x, "private"), targets=np.asarray(y))
    fit_private(own, data, mechanism=ONE_STEP, seed=1, ledger=Ledger(tmp_path))
    with pytest.raises(InputError, match="must be the ledger of this run"):
        fit_private(whiten(predict, public_of(x, 3), data), data, mechanism=ONE_STEP, seed=1, ledger=Ledger(tmp_path))


class Unread:
    """Inputs that nobody may read."""

    def __getitem__(self, rows):
        raise AssertionError("a private input was read")

    __array__ = __getitem__


def test_private_inputs_are_never_read():
    predict, _, _, x, _ = task("head", 1)
    private = dataclasses.replace(of(x, "private"), inputs=Unread())
    own = whiten(predict, public_of(x, 1), private)
    root = np.asarray(trees.leaves(own.w)["head/kernel" + ROOT][0], np.float64)
    values = np.linalg.eigvalsh(root @ root.T)
    np.testing.assert_allclose(values[1:], 1 / DAMPING, rtol=1e-4)  # all directions but the image's own
    np.testing.assert_allclose(values[0], 1 / (12 + DAMPING), rtol=1e-4)


def test_wrong_public_images_are_one_clear_line(tmp_path):
    predict, own, v, x, _ = task("head", 1)
    with pytest.raises(InputError, match="predict must not be whitened, to be written"):
        export(tmp_path / "export", own, v, {})
    private, public = of(x, "private"), public_of(x)
    shared = dataclasses.replace(public, examples=(*public.examples[:4], private.examples[2]))
    with pytest.raises(
        InputError, match="public images must not be private; got 1 of 5 that are among the private ones"
    ):
        whiten(predict, shared, private)
    with pytest.raises(InputError, match="public must be one image at least; got none"):
        whiten(predict, public.take(np.zeros(0, int)), private)
    with pytest.raises(InputError, match="predict must not be whitened"):
        whiten(own, public, private)
    with pytest.raises(
        InputError, match="private must be the features of the training images, beside public; got none"
    ):
        whiten(predict, public)
    with pytest.raises(InputError, match="finite"):
        whiten(predict, dataclasses.replace(public, inputs=public.inputs * np.nan), private)
    with pytest.raises(InputError, match="must have shape"):
        whiten(predict, dataclasses.replace(public, inputs=public.inputs[:, :5]), private)
    plain = tangent(model_of([lambda w, x: x @ w["k"]], {"k": jnp.eye(3)}, jnp.zeros((2, 3))).with_head(2, KEY), 0)
    with pytest.raises(InputError, match="predict must have a closed form of its tangent"):
        whiten(plain, of(np.ones((2, 3)), "public"), private)
