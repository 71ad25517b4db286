"""Every program lowers for CUDA and TPU on a machine that has neither, in the form of the platform that it is for.

Lowering is neither compiling nor running: what XLA makes of a program there is seen on a machine that has one.
"""

import dataclasses
import os
import subprocess
import sys
from contextlib import contextmanager
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import TOLERANCE, assert_rel_close, in_long, normal, tree_normal
from jax import export

import tangent_jax as tj
from experiments.shared import steps
from tangent_jax.core import trees
from tangent_jax.linear import cg
from tangent_jax.pretrained.load import FAMILIES
from tangent_jax.rules import attention
from tangent_jax.rules.probe import product
from tangent_jax.solver import passes
from tangent_jax.train.targets import call

ACCELERATORS = ("cuda", "tpu")
MECHANISM = tj.privacy.Mechanism(1.0, 2.0, 3, 1e-5)
OBJECTIVE = tj.make_objective("ce", penalty=1e-2)
TARGET = "__cudnn$fmha"


@contextmanager
def nobody_asks_which_devices_there_are():
    """What is asked while a program is traced is asked of this machine, which may not be the one that runs it.

    Attention alone asks whether there is a GPU here (`default_backend`): cuDNN's kernel needs one while it is traced.
    """

    def asked(*_, **__):
        raise AssertionError("a program asks for the devices of the machine that traces it")

    with pytest.MonkeyPatch.context() as patch:
        for name in ("devices", "local_devices"):
            patch.setattr(jax, name, asked)
        yield


def lowered(platform, f, *arguments):
    """The program of f as StableHLO for a platform, or for several as one."""
    checks = export.DisabledSafetyCheck.custom_call  # no version of JAX promises the kernel to the next
    kernels = [checks("__cudnn$fmhaSoftmax")]
    platforms = [platform] if isinstance(platform, str) else platform
    with nobody_asks_which_devices_there_are():
        return export.export(jax.jit(f), platforms=platforms, disabled_checks=kernels)(*arguments).mlir_module()


def vit(dtype="float32", heads=2, **options):
    """A predictor of a ViT whose heads cuDNN's kernel would take, a step, four inputs, their labels."""
    config = tj.models.ViTConfig(
        width=8 * heads, depth=2, heads=heads, mlp_width=20, patch_size=4, image_size=8, classes=7, **options
    )
    model = tj.models.VisionTransformer(config)
    w = tree_normal(11, trees.nest({path: np.zeros(shape, np.float32) for path, shape in model.shapes().items()}))
    predict = tj.tangent(tj.Pretrained(model, w, "random"), 1, dtype=jnp.dtype(dtype))
    return predict, predict.zeros(), normal(3, (4, *model.input_shape(predict.subset.stage))), jnp.arange(4)


def of_family(family):
    model = family.model(family.small)
    w = tree_normal(11, trees.nest({path: np.zeros(shape, np.float32) for path, shape in model.shapes().items()}))
    predict = tj.tangent(tj.Pretrained(model, w, "random"), 1)
    return predict, predict.zeros(), normal(3, (4, *model.input_shape(predict.subset.stage))), jnp.arange(4)


def lora():
    predict, _, _, y = vit()
    made = tj.Pretrained(predict.model, predict.w, "random").with_lora(2, 1, jax.random.key(0))
    predict = tj.tangent(made, 1, "lora")
    return predict, predict.zeros(), normal(3, (4, *made.model.input_shape(predict.subset.stage))), y


def changed(case, **fields):
    return dataclasses.replace(case[0], **fields), *case[1:]


CASES = {
    "ViT": vit,
    "ViT, half": partial(vit, "bfloat16"),
    "ViT, mean": partial(vit, pool="avg"),
    "autodiff": lambda: changed(vit(), linearization="autodiff"),
    "autodiff, half": lambda: changed(vit("bfloat16", pool="avg"), linearization="autodiff"),
    "nlft": lambda: changed(vit("bfloat16", pool="avg"), method="nlft"),
    **{family.name: partial(of_family, family) for family in FAMILIES},
    "LoRA": lora,
}


def epoch(predict, dw, x, y):
    """One epoch of `fit`."""
    program = steps.fit_step(predict, tj.Batches(x, y, batch_size=2), OBJECTIVE, metrics=(tj.metrics.accuracy,))
    return program.run, *program.arguments


def epoch_of_many(predict, dw, x, y):
    """One epoch of `fit_many`: three models at once."""
    program = steps.fit_many_step(predict, tj.Batches(x, y, batch_size=2), 3, OBJECTIVE)
    return program.run, *program.arguments


def solver(predict, dw, x, y):
    """What a pass of `solve` computes: kept products, gradient, Hessian's product, factors, a step."""

    def run(dw, part):
        keyed = jax.random.key(0)
        outputs = passes.outputs_of(part.jacobian, dw)
        kept, curvature = passes.keep_with_curvature(part, dw, outputs, OBJECTIVE, keyed, 0, 2)
        size = passes.gradient_size(part, dw, OBJECTIVE)
        part = part._replace(jacobian=kept)
        summed = passes.Summed(dw, jnp.zeros(()), size)
        summed, _, outputs = passes.add_gradient(summed, part, dw, OBJECTIVE)
        bent = passes.add_product(dw, part, summed.total, outputs, OBJECTIVE)
        return cg.step(cg.init(summed.total), bent), curvature, passes.change_of(kept, dw), summed.rounding

    return run, dw, steps.make_pass(predict, tj.Batches(x, y, batch_size=4), OBJECTIVE, signals=2).fresh


def private(predict, dw, x, y):
    """One step of `fit_private`: clipped sums over two micro-batches, and noise."""
    program = steps.private_step(predict, tj.Batches(x, y, batch_size=2), MECHANISM, OBJECTIVE)
    return program.run, *program.arguments


def vmapped(predict, dw, x, y):
    """The clipped sum of per-example gradients."""
    options = {"loss": tj.losses.CrossEntropy(), "clip_norm": 1.0, "chunk": 2}
    return partial(tj.privacy.clipped_sum, **options), predict, dw, x, y, jnp.ones(4)


def trunk(predict, dw, x, y):
    """Images to features."""
    program = steps.trunk(predict, jnp.zeros((2, *predict.model.input_shape(0)), jnp.uint8))
    return program.run, *program.arguments


def outputs(predict, dw, x, y):
    return call, predict, dw, x


PROGRAMS = [
    *((epoch, case) for case in ("autodiff, half", "LoRA")),
    *((epoch_of_many, "resnet"), (solver, "ViT, half"), (private, "ViT, half"), (vmapped, "nlft")),
    *in_long(
        *((epoch, case) for case in ("ViT", "autodiff", "nlft", "resnet")),
        *((epoch_of_many, "ViT, half"), (vmapped, "ViT, half")),
        *((solver, case) for case in ("ViT", "resnet", "LoRA")),
        *((private, case) for case in ("ViT", "nlft", "resnet")),
    ),
    *((trunk, case) for case in ("ViT, half", "ViT, mean")),
    *((outputs, case) for case in ("ViT, half", "autodiff, half", "nlft")),
    *((program, family.name) for family in FAMILIES for program in (trunk, outputs)),
]


@pytest.mark.parametrize(("program", "case"), PROGRAMS, ids=lambda value: getattr(value, "__name__", value))
def test_programs_lower_for_cuda_and_tpu(program, case):
    f, *arguments = program(*CASES[case]())
    text = lowered(ACCELERATORS, f, *arguments)
    assert "callback" not in text
    assert jax.default_backend() == "gpu" or TARGET not in text


def test_convolution_is_of_the_platform():
    f, *arguments = trunk(*CASES["resnet"]())
    counts = [lowered(platform, f, *arguments).count("stablehlo.convolution") for platform in ("cuda", "tpu", "cpu")]
    assert counts == [3, 3, 0]  # the stem's and a block's two


def test_halves_multiply_into_wide_sums():
    half = jnp.ones((2, 3), jnp.bfloat16)
    texts = [lowered(platform, partial(product, "ij,kj->ik"), half, half) for platform in ("cuda", "tpu", "cpu")]
    for text in texts:
        assert "lhs_precision_type = bf16, rhs_precision_type = bf16, accumulation_type = f32" in text
        assert "-> tensor<2x2xf32>" in text


# Attention by cuDNN's kernel


@pytest.fixture
def gpu(monkeypatch):
    """A machine that traces as if it had a GPU with cuDNN, which JAX asks for."""
    from jax._src.cudnn import fused_attention_stablehlo as theirs

    monkeypatch.setattr(theirs, "check_cudnn_version", lambda: 91000)
    monkeypatch.setattr(theirs, "check_compute_capability", lambda *_: True)
    monkeypatch.setattr(theirs, "is_cuda_compute_capability_equal", lambda *_: False)
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    jax.clear_caches()
    yield
    jax.clear_caches()  # of programs that were traced for a GPU


def operands(shape=(2, 5, 3, 8), dtype="bfloat16"):
    return [normal(i, shape, jnp.dtype(dtype)) for i in range(3)]


def alone(q, k, v):
    """Attention without a tangent."""
    return attention(q, None, k, None, v, None)[0]


FUSED = [(trunk, "ViT, half"), (outputs, "nlft")]  # in half precision, without a tangent, every token a query
FORMED = [(outputs, "ViT, half"), (epoch, "autodiff, half"), (vmapped, "nlft"), (trunk, "ViT")]


@pytest.mark.usefixtures("gpu")
@pytest.mark.parametrize(("program", "case"), FUSED + FORMED, ids=lambda value: getattr(value, "__name__", value))
def test_gpu_attends_by_kernel_without_tangent(program, case):
    f, *arguments = program(*CASES[case]())
    assert ((program, case) in FUSED) == (TARGET in lowered("cuda", f, *arguments))
    assert TARGET not in lowered("cpu", f, *arguments)


@pytest.mark.usefixtures("gpu")
@pytest.mark.parametrize(
    ("shape", "dtype"), [((2, 5, 3, 8), "float32"), ((2, 5, 3, 4), "bfloat16"), ((2, 5, 3, 136), "bfloat16")]
)
def test_kernel_gets_only_what_it_computes(shape, dtype):
    assert TARGET not in lowered("cuda", alone, *operands(shape, dtype))
    for taken in ("bfloat16", "float16"):
        assert TARGET in lowered("cuda", alone, *operands((2, 5, 3, 128), taken))


@pytest.mark.usefixtures("gpu")
def test_kernel_gets_no_open_batch_size():
    any_batch = jax.ShapeDtypeStruct((*export.symbolic_shape("b"), 5, 3, 8), jnp.bfloat16)
    assert TARGET not in lowered("cuda", alone, any_batch, any_batch, any_batch)


@pytest.mark.usefixtures("gpu")
def test_vmapped_examples_are_examples():
    q, k, v = operands()
    text = lowered("cuda", jax.vmap(alone, (0, None, None)), jnp.stack([q, 2 * q, 3 * q]), k, v)
    (call,) = [line for line in text.splitlines() if TARGET in line]
    assert "tensor<6x5x3x8xbf16>" in call


@pytest.mark.parametrize("where", ["cpu", "gpu"])
def test_cpu_attention_is_plain(where, request):
    if where == "gpu":  # a machine with a GPU that computes on its CPU
        request.getfixturevalue("gpu")
    q, k, v = operands()
    a = jax.nn.softmax(jnp.einsum("bnhe,bmhe->bhnm", q * 8**-0.5, k).astype(jnp.float32)).astype(jnp.bfloat16)
    for f in (alone, jax.jit(alone)):
        assert (f(q, k, v) == jnp.einsum("bhnm,bmhe->bnhe", a, v)).all()


@pytest.mark.usefixtures("gpu")
def test_differentiated_attention_is_closed_form():
    x, dx = operands(), [normal(10 + i, (2, 5, 3, 8), jnp.bfloat16) for i in range(3)]
    want = attention(*(a for pair in zip(x, dx, strict=True) for a in pair))
    assert_rel_close(jax.jvp(alone, x, dx), want, TOLERANCE["bfloat16"])
    assert TARGET not in lowered("cuda", lambda *x: jax.vjp(alone, *x)[1](x[0]), *x)


# Copies from the host, which JAX logs on a CPU too


def test_no_copy_is_of_one_step():
    """As many copies to the device for 2 steps of an epoch as for 16, for 2 micro-batches as for 8."""
    code = """
import sys
import jax, numpy as np
import tangent_jax as tj
from helpers import predictor
predict, _ = predictor("head")
x = np.random.default_rng(0).standard_normal((32, *predict.model.input_shape(predict.subset.stage))).astype(np.float32)
y, mechanism = np.arange(32) % 7, tj.privacy.Mechanism(1.0, 2.0, 2, 1e-5)
runs = {
    "fit": lambda data: tj.fit(predict, data, epochs=2),
    "fit_private": lambda data: tj.fit_private(predict, data, mechanism=mechanism, seed=0),
}
for run, sizes in {"fit": (16, 2), "fit_private": (16, 4)}.items():
    for size in sizes:
        runs[run](tj.Batches(x, y, jax.random.key(0), batch_size=size))  # compiles
        print("run", file=sys.stderr, flush=True)
        with jax.transfer_guard_host_to_device("log"):
            runs[run](tj.Batches(x, y, jax.random.key(0), batch_size=size))
        print("compile", file=sys.stderr, flush=True)
"""
    environment = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "0", "PYTHONPATH": os.pathsep.join(("tests", "."))}
    done = subprocess.run([sys.executable, "-c", code], env=environment, check=True, capture_output=True, timeout=500)
    runs = done.stderr.decode().split("run\n")[1:]
    fit, fit_smaller, private, private_smaller = (
        r.split("compile\n")[0].count("host-to-device transfer") for r in runs
    )
    assert fit == fit_smaller > 0
    assert private == private_smaller > 0
