"""Functions of any framework go wherever a model goes: token ids, ties, masks, and every wrong use in one line."""

import json
import runpy

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from helpers import assert_rel_close, normal, tree_normal

import tangent_jax as tj
from tangent_jax import rules
from tangent_jax.core import trees
from tangent_jax.core.checks import InputError
from tangent_jax.core.notation import Dual
from tangent_jax.features import extract as module
from tangent_jax.linear.gram import own_gram
from tangent_jax.models.protocol import prepare
from tangent_jax.solver.rows import jacobian_rows

VOCABULARY, TOKENS, WIDTH = 300, 4, 3  # bf16 holds no id of 299


def embed(w, ids):
    x = w["table"][ids]
    return jnp.concatenate([x, (ids > 0)[..., None].astype(x.dtype)], -1)  # the mask is a column


def make_block(i, gain=1.0):
    def block(w, x):
        x, mask = x[..., :-1], x[..., -1:]
        scores = jnp.where(mask.swapaxes(1, 2) > 0, x @ x.swapaxes(1, 2), -1e9)
        x = x + gain * jnp.tanh(jax.nn.softmax(scores) @ x @ w[f"block_{i}"]["kernel"])
        return jnp.concatenate([x, mask], -1)

    return block


def pool(w, x):
    return (x[..., :-1] * x[..., -1:]).sum(1) / x[..., -1:].sum(1)


def tied(w, x):
    return pool(w, x) @ w["table"][:2].T + w["offset"]


def weights():
    table = normal(1, (VOCABULARY, WIDTH))
    return {
        "table": table,
        "block_0": {"kernel": normal(2, (3, 3))},
        "block_1": {"kernel": normal(3, (3, 3))},
        "offset": normal(4, (2,)),
    }


def token_ids(count=24):
    ids = np.random.default_rng(0).integers(1, VOCABULARY, (count, TOKENS))
    ids[::2, 3:] = 0
    ids[:, 0] = np.where(np.arange(count) % 2, 299, 7)
    return ids


def text(gain=1.0, **options):
    options = {"inputs": token_ids(), "head": tied, **options}
    return tj.model_of([embed, make_block(0), make_block(1, gain)], weights(), **options)


def labelled(count=24):
    return tj.examples(token_ids(count), np.arange(count) % 2)


KINDS = [
    ("blocks", 1, 2),
    ("head", 0, 3),
    ("everything", 0, 0),
    (lambda path: path in ("table", "block_1/kernel"), 0, 0),
]


@pytest.mark.parametrize(("kind", "blocks", "stage"), KINDS)
def test_tangent_is_jvp_by_features_and_inputs(x64, tmp_path, kind, blocks, stage):
    """A tied leaf belongs to its lowest stage, and has the tangent of all its uses."""
    pretrained = text()
    predict = tj.tangent(pretrained, blocks, kind)
    assert (predict.subset.stage, predict.linearization) == (stage, "autodiff")
    dw, w, ids = tree_normal(5, predict.zeros()), weights(), token_ids()

    def plainly(part):
        whole = trees.replace(w, {path.removeprefix("head/"): leaf for path, leaf in trees.leaves(part).items()})
        return tied(whole, make_block(1)(whole, make_block(0)(whole, embed(whole, ids))))

    own = {path: trees.leaves(pretrained.w)[path] for path in predict.subset.paths}
    want = jax.jvp(lambda part: plainly(trees.nest(part)), (own,), (trees.leaves(dw),))
    rows = np.asarray(pretrained.model.apply(pretrained.w, jnp.asarray(ids), 0, stage))
    assert_rel_close(predict(dw, rows), want[0] + want[1])
    features = tj.extract(predict, labelled(), tj.Cache(tmp_path, "float64"))
    assert features.inputs.dtype == (np.float64 if stage else np.int64)
    assert_rel_close(predict(dw, np.asarray(features.inputs)), want[0] + want[1])


def test_head_leaves_keep_their_names():
    model = text().model
    paths = {leaf.name: leaf.path for leaf in model.leaves}
    assert {name for name, path in paths.items() if name != path} == {"offset"}
    assert paths["offset"] == "head/offset"
    assert model.from_world(model.to_world(model.shapes())) == model.shapes()
    assert "offset" in model.to_world(model.shapes())


@pytest.mark.parametrize("dtype", [np.int64, np.int16, np.uint16])
@pytest.mark.parametrize("compute", [None, jnp.bfloat16])
def test_token_ids_are_never_cast_to_floats(dtype, compute):
    predict = tj.tangent(text(), kind="everything", dtype=compute)
    got = predict(predict.zeros(), token_ids().astype(dtype))
    w = trees.cast(weights(), compute)
    want = tied(w, make_block(1)(w, make_block(0)(w, embed(w, token_ids()))))
    assert_rel_close(got, want.astype(jnp.float32), 0.05 if compute else 1e-5)
    w, x = prepare(predict.model, predict.w, jnp.asarray(token_ids()), jnp.bfloat16, 0)
    assert (x.dtype, jax.tree.leaves(w)[0].dtype) == (jnp.int32, jnp.bfloat16)


def test_uint8_is_read_as_ids(tmp_path):
    """uint8 is an image where the model reads images, and an id where it reads arrays."""
    low = token_ids() % 100
    predict = tj.tangent(text(), kind="everything")
    want = predict(predict.zeros(), low)
    for dtype in (np.uint8, np.int8):
        assert_rel_close(predict(predict.zeros(), low.astype(dtype)), want)
        features = tj.extract(predict, tj.examples(low.astype(dtype), np.zeros(24, int)), tj.Cache(tmp_path))
        assert_rel_close(predict(predict.zeros(), np.asarray(features.inputs)), want)
    with pytest.raises(InputError, match="inputs must be int32; got float32"):
        predict(predict.zeros(), low.astype(np.float32))
    for rows in (low.astype(np.float32), low[:, :3], low + 2**40):
        with pytest.raises(InputError, match=r"row 0 must be an array int32\(4,\)"):
            tj.extract(predict, tj.examples(rows, np.zeros(24, int)), tj.Cache(tmp_path))


def mixed(w, x):
    return x + x.mean(0)


def test_batch_statistics_are_refused():
    """Statistics of the batch are refused where they can be seen; else each example is a batch of one."""
    stages, shape = [embed, make_block(0), mixed, make_block(1)], jax.ShapeDtypeStruct((24, TOKENS), jnp.int32)
    with pytest.raises(InputError, match=r"stage 2 must treat each example alone; got values .* that move"):
        tj.model_of(stages, weights(), token_ids(), head=tied)
    predict = tj.tangent(tj.model_of(stages, weights(), shape, head=tied), kind="everything")
    dw, ids = tree_normal(6, predict.zeros()), token_ids()
    assert_rel_close(predict(dw, ids)[:1], predict(dw, ids[:1]))
    assert_rel_close(predict(dw, ids)[:1], predict(dw, np.concatenate([ids[:1], ids[5:9]]))[:1])


def test_private_training_is_per_example(tmp_path):
    predict = tj.tangent(text(), output="tangent")
    data = tj.extract(predict, labelled(), tj.Cache(tmp_path))
    x, y, dw = jnp.asarray(data.inputs[:5]), jnp.asarray(data.targets[:5]), tree_normal(7, predict.zeros())
    total = tj.privacy.clipped_sum(predict, dw, x, y, jnp.ones(5), loss=tj.losses.CrossEntropy(), clip_norm=0.1)

    def loss(dw, i):
        return tj.losses.CrossEntropy()(predict(dw, x[i : i + 1]), y[i : i + 1])[0]

    gradient = jax.jit(jax.grad(loss), static_argnums=1)
    gradients = [gradient(dw, i) for i in range(5)]
    norms = jnp.stack([jnp.sqrt(trees.squared_norm(g)) for g in gradients])
    assert_rel_close(total.norms, norms)
    want = jax.tree.map(lambda *g: sum(jnp.minimum(1, 0.1 / n) * v for n, v in zip(norms, g, strict=True)), *gradients)
    assert_rel_close(total.value, want)
    fitted = tj.fit_private(predict, data, mechanism=tj.make_mechanism(3.0, 1e-2, steps=2))
    assert fitted.info.spent.private
    with pytest.raises(InputError, match=r"without\. Call clipped_sum"):
        tj.privacy.clipped_sum_closed_form(predict, dw, x, y, jnp.ones(5), loss=tj.losses.CrossEntropy(), clip_norm=0.1)


def test_functions_are_fitted_and_exported(tmp_path, monkeypatch):
    predict = tj.tangent(text())
    data = tj.extract(predict, labelled(), tj.Cache(tmp_path / "cache"))
    runs, run = [], module.on_devices
    monkeypatch.setattr(module, "on_devices", lambda *trunk: runs.append(trunk) or run(*trunk))
    assert np.array_equal(tj.extract(predict, labelled(), tj.Cache(tmp_path / "cache")).inputs, data.inputs)
    assert runs == []
    store, origin = tj.Store(tmp_path / "store"), tj.store.make_provenance(predict)
    for s in range(2):
        half = data.take(np.arange(s, 24, 2))
        fitted = tj.fit(predict, half, key=jax.random.key(s), optimizer=tj.adam(0.1), epochs=10)
        store.add(f"half {s}", fitted.dw, origin.trained_on(half, 1.0))
    dw = store.compose()
    each = [tj.outputs(predict, part.dw, data.inputs) for part in store.values()]
    assert_rel_close(tj.outputs(predict, dw, data.inputs), (each[0] + each[1]) / 2)
    tj.export(tmp_path / "export", predict, dw, {})
    again, step = tj.exports.load_export(tmp_path / "export", text().model)
    assert trees.fingerprint((again.w, step)) == trees.fingerprint((predict.w, dw))
    with pytest.raises(InputError, match="got FunctionModel"):
        tj.save(tmp_path / "model.safetensors", text())
    other = tj.tangent(text(gain=2.0))  # equal in code and leaves, of another constant
    with pytest.raises(InputError, match=r"it differs in programs"):
        tj.exports.load_export(tmp_path / "export", other.model)
    with monkeypatch.context() as patch:
        patch.setattr(jax, "__version__", "another")  # whose programs are no guide
        assert tj.exports.load_export(tmp_path / "export", text().model)
    with pytest.raises(InputError, match=r"config\.programs"):
        store.add("other", fitted.dw, tj.store.make_provenance(other).trained_on(data, 1.0))
    cache = tj.Cache(tmp_path / "cache")
    receipt = tj.store.remove(store, tj.store.plan_removal(store, examples=["row 3"]), "drop", cache=cache)
    assert [*store] == ["half 0"]
    assert receipt is not None
    with pytest.raises(InputError, match="some were removed"):  # its cached row too
        data.inputs[3]
    assert np.any(np.asarray(data.inputs[2]))


def test_token_ids_export_as_stablehlo(tmp_path):
    predict = tj.tangent(text())
    dw = tree_normal(8, predict.zeros())
    tj.export(tmp_path / "export", predict, dw, {}, format="stablehlo")
    got = runpy.run_path(str(tmp_path / "export/run.py"))["load"](tmp_path / "export")(token_ids().astype(np.int32))
    want = predict(dw, predict.model.apply(predict.w, jnp.asarray(token_ids()), 0, predict.subset.stage))
    assert_rel_close(got, np.asarray(want))


def test_settings_tell_programs_apart(tmp_path):
    one, again, other = text().model, text().model, text(gain=2.0).model
    assert one != again  # functions are other objects
    assert json.dumps(one.settings) == json.dumps(again.settings) != json.dumps(other.settings)
    predict, third = tj.tangent(text(), blocks=0), tj.tangent(text(gain=2.0), blocks=0)
    for each in (predict, third, predict):
        rows = tj.extract(each, labelled(), tj.Cache(tmp_path)).inputs
        want = each.model.apply(each.w, jnp.asarray(token_ids()), 0, 3)
        assert_rel_close(np.asarray(rows), np.asarray(want))


def squares(penalty=0.05):
    return tj.make_objective("mse", penalty=penalty)


def test_solve_without_factors_is_kernel_optimum(tmp_path):
    model = tj.model_of([embed, lambda w, x: pool(w, make_block(0)(w, x))], without("block_1", "offset"), token_ids())
    predict = tj.tangent(model.with_head(1, jax.random.key(0)), blocks=1, kind="everything")
    y = np.sin(np.arange(24))[:, None].astype(np.float32)
    data = tj.extract(predict, tj.examples(token_ids(), y), tj.Cache(tmp_path))
    solved = tj.solve(predict, data, squares(), certificate=1e-3)
    assert solved.info.converged
    assert solved.info.curvature is None
    solution = tj.solver.make_kernel(predict, data, squares()).solve()
    outputs = np.asarray(tj.outputs(predict, solved.dw, data.inputs), np.float64)
    assert_rel_close(outputs, solution.outputs(), 1e-3)
    f, covariance = tj.solver.make_posterior(solution)(data.inputs[:2])
    assert_rel_close(f, solution.outputs()[:2], 1e-6)
    by_solver = tj.solver.SolverPosterior(predict, data, squares(), solved, tj.solver.make_posterior(solution).scale)(
        data.inputs[:2]
    )[1]
    assert_rel_close(np.asarray(by_solver, np.float64), covariance, 1e-3)
    with pytest.raises(InputError, match="Solve without factors, and merge by mean"):
        tj.solver.make_curvature(predict, data, squares())
    train, held = data.hold_out()
    assert (len(train), len(held)) == (20, 4)


def without(*names):
    return {name: leaf for name, leaf in weights().items() if name not in names}


def dense(w, x, name):
    return x @ w[name]["kernel"] + w[name]["bias"]


def two_dense(pairs, x, start=0):
    x, dx = rules.dense(x, None, pairs["first"]) if start == 0 else (x, None)
    return Dual(*rules.dense(x, dx, pairs["head"]))


def test_a_given_dual_is_used_as_the_closed_form(x64):
    """The kernel of closed forms is that of rows formed by autodiff."""
    w = {"first": {"kernel": normal(1, (4, 3)), "bias": normal(2, (3,))}}
    w |= {"head": {"kernel": normal(3, (3, 2)), "bias": normal(4, (2,))}}
    given = {"stages": [lambda w, x: dense(w, x, "first")], "w": w, "inputs": normal(5, (3, 4))}
    models = [tj.model_of(**given, head=lambda w, x: dense(w, x, "head"), dual=dual) for dual in (two_dense, None)]
    closed, plain = (tj.tangent(model, kind="everything") for model in models)
    assert (closed.linearization, plain.linearization) == ("closed_form", "autodiff")
    rows = jacobian_rows(plain, given["inputs"])
    assert_rel_close(jacobian_rows(closed, given["inputs"]).gram(), rows.gram())
    assert_rel_close(rows.gram()[:2, :2], own_gram(rows)[0])
    assert tj.solver.make_curvature(closed, tj.Batches(np.asarray(given["inputs"]), np.arange(3) % 2)).kernels


def test_foreign_trees_keep_structure():
    """NNX states, with all but parameters apart, and Equinox modules, whose leaves have paths of their own."""

    class Net(nnx.Module):
        def __init__(self, rngs):
            self.layers = nnx.List([nnx.Linear(4, 4, rngs=rngs), nnx.Linear(4, 2, rngs=rngs)])
            self.norm, self.dropout = nnx.BatchNorm(4, rngs=rngs), nnx.Dropout(0.5, rngs=rngs)

        def first(self, x):
            return self.dropout(self.norm(self.layers[0](x)))

    net, x = Net(nnx.Rngs(0)), np.asarray(normal(1, (6, 4)))

    def functions(net):
        graph, w, rest = nnx.split(net, nnx.Param, ...)
        return [lambda w, x: nnx.merge(graph, w, rest).first(x)], w, lambda w, x: nnx.merge(graph, w, rest).layers[1](x)

    stages, w, head = functions(net)
    with pytest.raises(InputError, match=r"TraceContextError.* into evaluation"):
        tj.model_of(stages, w, x, head=head)
    net.eval()
    stages, w, head = functions(net)
    model = tj.model_of(stages, w, x, head=head)
    predict, biases = tj.tangent(model, 0), tj.tangent(model, 0, "bitfit").subset.paths
    assert_rel_close(predict(predict.zeros(), stages[0](w, x)), net.layers[1](net.first(x)))
    assert biases == ("head/layers/1/bias", "head/layers/1/kernel", "layers/0/bias", "norm/bias")
    assert "layers/0/bias/value" in model.model.to_world(model.model.shapes())  # exports keep NNX's own names
    with pytest.raises(
        InputError, match=r"rngs/count/value must be an array of float32; got uint32.*nnx.Param of whole numbers"
    ):
        tj.model_of(stages, nnx.state(nnx.Dropout(0.5, rngs=nnx.Rngs(0))), x)

    w, static = eqx.partition(eqx.nn.MLP(4, 2, 5, 1, key=jax.random.key(0)), eqx.is_inexact_array)

    def of(i):
        return lambda w, x: jax.vmap(eqx.combine(w, static).layers[i])(x)

    biases = tj.models.make_subset(tj.model_of([of(0)], w, x, head=of(1)).model, lambda path: path.endswith("bias"))
    assert biases.paths == ("head/layers/1/bias", "layers/0/bias")


def test_leaf_named_value_keeps_path():
    """A module may have an array named `value` beside others, which has its own path."""

    class Scale(eqx.Module):
        value: jax.Array
        shift: jax.Array

    w = {"scale": Scale(jnp.ones(4), jnp.zeros(4)), "value": jnp.ones(4)}
    stages = [lambda w, x: x * w["scale"].value + w["scale"].shift, lambda w, x: x * w["value"]]
    model = tj.model_of(stages, w, jnp.ones((1, 4))).model
    assert {*model.shapes()} == {"scale/value", "scale/shift", "value"}


def test_with_head_refuses_a_second():
    stages, w = [embed, lambda w, x: pool(w, make_block(0)(w, x))], without("block_1", "offset")
    bare = tj.model_of(stages, w, token_ids())
    assert bare.model.classes == 0
    headed = bare.with_head(5, jax.random.key(0))
    assert headed.model.shapes()["head/kernel"] == (WIDTH, 5)
    assert headed.with_head(["no", "yes"], jax.random.key(0)).model.classes == 2
    assert tj.models.make_subset(headed.with_lora(2, 1, jax.random.key(1)).model, "lora_b").stage == 1
    with pytest.raises(InputError, match=r"a head of your own\. Give model_of"):
        text().with_head(3, jax.random.key(0))
    with pytest.raises(InputError, match=r"a leaf of your own"):
        bare.reset(tj.models.make_subset(bare.model, "everything"), jax.random.key(0))
    with pytest.raises(InputError, match='features "b d"; got shape'):
        tj.model_of([embed], {"table": w["table"]}, token_ids()).with_head(3, jax.random.key(0))
    with pytest.raises(InputError, match="linearization must be autodiff, or None, for a FunctionModel"):
        tj.tangent(text(), linearization="closed_form")
    with pytest.raises(InputError, match="must choose a leaf"):
        tj.tangent(text(), kind=lambda path: False)


def drawn_in_python(w, x):
    return x + np.random.default_rng().standard_normal()


X = np.ones((2, 4), np.float32)
WRONG = {
    "integers": ([lambda w, x: x * w["a"]], {"a": np.arange(4)}, "a must be an array of float32; got int64"),
    "closed over": ([lambda w, x: x], {"a": X[0]}, "leaves of w must be read by a stage; got a, which none reads"),
    "shapes": (
        [lambda w, x: x @ w["a"]],
        {"a": np.ones((3, 2), np.float32)},
        r"stage 0 of inputs .*Look at its shapes",
    ),
    "name": ([lambda w, x: nowhere(x)], {"a": X[0]}, "got NameError: name 'nowhere' is not defined$"),  # noqa: F821
    "pair": ([lambda w, x: (x * w["a"], x)], {"a": X[0]}, "one array of floats"),
    "whole": ([lambda w, x: (x * w["a"]).astype(int)], {"a": X[0]}, "one array of floats"),
    "batch lost": ([lambda w, x: (x * w["a"]).sum()], {"a": X[0]}, "one array of floats"),
    "random": (
        [lambda w, x: x * w["a"] + jax.random.normal(jax.random.key(0), (4,))],
        {"a": X[0]},
        "must draw no random numbers",
    ),
    "python": ([lambda w, x: x * w["a"], drawn_in_python], {"a": X[0]}, "stage 1 must be one program"),
    "module": ([eqx.nn.Linear(4, 4, key=jax.random.key(0))], {"a": X[0]}, "stage 0 must be a function"),
    "none": ([], {"a": X[0]}, "at least one function"),
    "empty": ([lambda w, x: x], {}, "w must be a tree"),
    "twice": ([lambda w, x: x * w["a/b"]], {"a/b": X[0], "a": {"b": X[0]}}, "a path of its own"),
    "in its path": ([lambda w, x: x * w["head/a"]], {"head/a": X[0]}, "that the head alone reads"),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_use_is_one_line(name):
    stages, w, message = WRONG[name]
    with pytest.raises(InputError, match=message) as error:
        tj.model_of(stages, w, X)
    assert "\n" not in str(error.value)


def test_wrong_inputs_are_refused():
    scaled = [lambda w, x: x * w["a"]]
    with pytest.raises(InputError, match=r'inputs must be arrays "b \.\.\."'):
        tj.model_of(scaled, {"a": X[0]}, X[0])
    with pytest.raises(InputError, match="inputs must be square images"):
        tj.model_of(scaled, {"a": X[0]}, X, preprocessing=tj.models.Preprocessing())
    with pytest.raises(InputError, match='outputs of the head must be "b c"'):
        tj.model_of(scaled, {"a": X[0]}, X, head=lambda w, x: x.sum(1))
    with pytest.raises(InputError, match="must have as many rows"):
        tj.examples(X, [0])
    with pytest.raises(InputError, match="rows of one shape"):
        tj.examples([0, 1], [0, 1])
    predict = tj.tangent(text())
    with pytest.raises(InputError, match=r"got uint8\(8, 8, 3\).*tj\.examples\(x, targets\), x of int32 \(n, 4\)"):
        tj.extract(predict, tj.open_dataset("digits").train.take(np.arange(2)))
