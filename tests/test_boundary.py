"""Every public name called with junk: it works, or one line says which argument is wrong."""

import contextlib
import inspect
import io
import json
import os
import pickle
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from safetensors.numpy import save_file

import tangent_jax as tj
from experiments.shared.names import public_names
from tangent_jax.core import InputError, Tree
from tangent_jax.core.boundary import public
from tangent_jax.core.files import expand_path

ROWS = 6


def junk():
    """Values of the wrong kind, made anew for each call."""
    return {
        "None": None, "0": 0, "-1": -1, "1.5": 1.5, "nan": float("nan"), "True": True, "empty text": "", "text": "junk",
        "bytes": b"junk", "list": [], "list of None": [None], "dict": {}, "dict of 1": {"a": 1}, "object": object(),
        "a class": int, "a lambda": lambda: None, "texts": np.array(["a", "b"]), "empty array": np.zeros((0, 3)),
        "0-d array": np.array(1.0), "complex array": np.ones(3, complex), "wrong shape": np.ones((2, 3, 4)),
        "objects": np.array([None, {}], object), "a generator": (i for i in range(2)), "huge": 10**30,
    }  # fmt: skip


@pytest.fixture(scope="module")
def valid(tmp_path_factory):
    """A value that fits for each name of a parameter."""
    folder = tmp_path_factory.mktemp("boundary")
    pretrained = tj.load("builtin").with_head(3, jax.random.key(0))
    predict = tj.tangent(pretrained, kind="head", output="tangent")
    x = np.random.default_rng(0).standard_normal((ROWS, *predict.model.input_shape(predict.subset.stage)))
    y = np.arange(ROWS) % 3
    examples = tuple((f"{i:064x}", f"{i}.png") for i in range(ROWS))
    features = tj.Features(x.astype(np.float32), y, examples)
    dw, mechanism = predict.zeros(), tj.make_mechanism(3.0, 1e-5, 1)
    origin = tj.store.make_provenance(predict)
    store = tj.Store(folder / "store")
    store.add("a", jax.tree.map(lambda leaf: np.asarray(leaf) + 1, dw), origin)
    return {
        "pretrained": pretrained, "predict": predict, "x": x, "y": y, "targets": y, "labels": y, "data": features,
        "features": features, "examples": features, "dw": dw, "w": pretrained.w, "tree": dw, "model": pretrained.model,
        "mechanism": mechanism, "provenance": origin, "store": store, "key": jax.random.key(0), "epochs": 1,
        "components": {"a": dw}, "classes": 3, "names": ["a"], "path": folder / "file", "folder": folder / "new",
        "loss": tj.losses.CrossEntropy(), "objective": tj.make_objective("ce"), "outputs": jnp.ones((ROWS, 3)),
        "optimizer": tj.adam(), "epsilon": 3.0, "delta": 1e-5, "steps": 1, "owner": "a", "runs": [features.batches()],
    }  # fmt: skip


SLOW = {"fit_audited", "fit_private_many", "canary_scores", "fill", "membership_attack", "make_canaries"}
"""Called with junk for every argument at once, and no more: with valid ones they train."""
TRAINING = {
    "fit",
    "fit_many",
    "fit_private",
    "solve",
    "solve_many",
    "make_posterior",
    "make_kernel",
    "make_curvature",
    "export",
}
"""Called with junk for each argument that is needed: an optional one would be looked at after they have trained."""


def calls_of(name, function, valid):
    """(words, arguments) of each call of a public name."""
    parameters = [
        p for p in inspect.signature(function).parameters.values() if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)
    ]
    needed = [p.name for p in parameters if p.default is p.empty]
    for kind in junk():
        yield f"{name}(all {kind})", {n: junk()[kind] for n in needed}
        if name in SLOW:
            continue
        for p in parameters:
            if p.name in needed or name not in TRAINING:
                given = {n: valid.get(n, junk()[kind]) for n in needed}
                yield f"{name}({p.name}={kind})", given | {p.name: junk()[kind]}


OWN = {"tangent", "nonlinear", "make_subset", "evaluate", "distance_bound", "fit", "greedy_soup"}
"""They call a function of the caller's (`kind`, `predict`, `metric`, `data`), whose own error stays what it is."""


def attempt(function, given):
    """None where the call works or says one line; else the error."""
    signature = inspect.signature(function)
    positional = [p for p in signature.parameters.values() if p.kind == p.POSITIONAL_ONLY]
    args = [given.pop(p.name) for p in positional if p.name in given]
    try:
        with contextlib.redirect_stderr(io.StringIO()):
            function(*args, **given)
    except InputError as error:
        text = str(error)
        return None if "\n" not in text and re.search("; (got|it (has|is|holds)) ", text) else f"a message {text!r}"
    except Exception as error:
        return f"{type(error).__name__}: {str(error).splitlines()[:1]}"
    return None


def test_no_public_call_ends_in_another_error_than_one_line(valid, tmp_path, monkeypatch):
    """The 3,125 calls of FOUND, 86, and more."""
    monkeypatch.chdir(tmp_path)
    count, wrong = 0, []
    for path, function in public_names().items():
        name = path.rpartition(".")[2]
        if not callable(function) or (isinstance(function, type) and not issubclass(function, object)):
            continue
        if isinstance(function, type) and (issubclass(function, Exception) or getattr(function, "_is_protocol", False)):
            continue
        if name in ("TangentViT", "ViT", "Dual") or hasattr(function, "_fields"):  # Flax's own; plain tuples
            continue
        for words, given in calls_of(name, function, valid):
            count += 1
            is_own = name in OWN and ("lambda" in words or "a class" in words)
            error = attempt(function, given)
            if error is not None and not is_own:
                wrong.append(f"{words}: {error}")
    print(f"{count} calls, {len(wrong)} of them ended in another error")
    assert count >= 3125
    assert not wrong, "\n".join(wrong)


def test_what_ended_in_a_traceback_ends_in_one_line(valid, tmp_path):
    """FOUND, 87."""
    predict, dw, features, mechanism = (valid[name] for name in ("predict", "dw", "features", "mechanism"))
    digits = tj.open_dataset("digits").test
    save_file({"a": np.ones(2, np.float32), "a/b": np.ones(2, np.float32)}, tmp_path / "nested.safetensors")
    for shape in ([2**70], [2**70, 0]):
        header = json.dumps({"a": {"dtype": "F32", "shape": shape, "data_offsets": [0, 0]}}).encode()
        (tmp_path / f"{len(shape)}.safetensors").write_bytes(len(header).to_bytes(8, "little") + header)
    (tmp_path / "file").write_text("a file")
    named = tj.tangent(tj.load("builtin").with_head(("a", "b", "c"), jax.random.key(0)), kind="head")
    store = tj.Store(tmp_path / "store")
    origin = tj.store.make_provenance(named, tj.Recipe(head="named"), ("a", "b", "c"))
    store.add("one", jax.tree.map(lambda leaf: np.asarray(leaf) + 1, named.zeros()), origin)
    for match, call in {
        "nest: expected one leaf or others below it": lambda: tj.store.read_component(tmp_path / "nested.safetensors"),
        "a whole safetensors file; got .*1.safetensors": lambda: tj.load(tmp_path / "1.safetensors"),
        "a whole safetensors file; got .*2.safetensors": lambda: tj.store.read_component(tmp_path / "2.safetensors"),
        "compose: expected names among the 1 components": lambda: tj.compose({"a": dw}, {"b": 1.0}),
        "join: expected classes, the names of the outputs": lambda: tj.join(store, predict=named),
        "widen: expected a head of 1 classes in dw": lambda: tj.models.widen(
            named, ["a", "b"], named.zeros(), ["a"]
        ),
        "Cache: expected folders; got the file": lambda: predict.features(digits, tj.Cache(tmp_path / "file")),
        "outputs: expected a dw outside jit": lambda: jax.jit(lambda dw: tj.evaluate(predict, dw, features))(dw),
        "accuracy: expected targets that are class indices": lambda: tj.metrics.accuracy(np.ones((3, 3)), "junk"),
        "make_provenance: expected a Recipe": lambda: tj.store.make_provenance(predict, recipe="junk"),
        "an optimiser of optax; got int": lambda: tj.fit_private(predict, features, optimizer=0, mechanism=mechanism),
        "with_head: expected classes in": lambda: tj.load("builtin").with_head(True, jax.random.key(0)),
    }.items():  # fmt: skip
        with pytest.raises(InputError, match=match) as error:
            call()
        assert "\n" not in str(error.value)
    np.testing.assert_array_equal(tj.outputs(predict, dw, features), tj.outputs(predict, dw, features.inputs))


def test_paths_and_rows_that_are_none_end_in_one_line(tmp_path, monkeypatch):
    """URLs, folders, devices, long names, NUL, rows of several lengths, a value that cannot be shown."""

    class Unshown:
        def __repr__(self):
            raise RuntimeError("no")

    monkeypatch.chdir(tmp_path)
    url, long, folder, dw = "gs://bucket/x", "x" * 5000, tmp_path / "folder", {"a": np.ones(2, np.float32)}
    folder.mkdir()
    os.mkfifo(tmp_path / "pipe")
    store = tj.Store(tmp_path / "store")
    write, read = tj.store.write_component, tj.store.read_component
    calls = [lambda bad=bad, call=call: call(bad) for bad in (url, long, "a\0b", Unshown()) for call in (
        lambda path: write(path, dw, {}), read, tj.store.read_factors, store.verify_receipt, tj.Cache, tj.Store,
        lambda path: expand_path("test", path),
    ) if (bad, call) != (url, tj.Cache)]  # fmt: skip
    calls += [lambda: write(folder, dw, {}), lambda: read(folder), lambda: read(tmp_path / "pipe")]
    calls += [lambda: tj.Store("/dev/null"), lambda: tj.Store("/dev/null/store")]
    calls += [lambda: tj.Batches([[1, 2], [3]], [0, 1]), lambda: tj.Batches(np.ones((2, 1)), [[1, 2], [3]])]
    calls += [lambda: tj.examples([[1, 2], [3]], [0, 1]), lambda: tj.examples(np.ones((2, 1)), [[1, 2], [3]])]
    for call in calls:
        with pytest.raises(InputError) as error:
            call()
        assert "\n" not in str(error.value)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["folder", "pipe", "store"]


def test_an_error_of_our_own_stays_what_it_is():
    """Where every argument is of its type nothing is caught, and a message names the first that is not."""

    @public
    def function(number: int, tree: Tree, *more: int) -> None:
        raise KeyError("ours")

    for good in ((1, {"a": np.ones(2)}), (1, {"a": 1.0}, "any")):
        with pytest.raises(KeyError, match="ours"):
            function(*good)
    for bad, match in (
        ((1.5, {"a": 1.0}), "number, a value of type int; got 1.5"),
        ((1, "x"), "tree, a pytree of arr"),
    ):
        with pytest.raises(InputError, match=match):
            function(*bad)
    with pytest.raises(TypeError, match="missing 1 required positional argument"):
        function(1)
    assert pickle.loads(pickle.dumps(tj.fit)) is tj.fit
    assert [*inspect.signature(tj.fit).parameters][:2] == ["predict", "data"]
