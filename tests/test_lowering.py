"""Every program lowers for CUDA and TPU on a machine that has neither, in the form of the platform that it is for.

Lowering is neither compiling nor running: what XLA makes of a program there is seen on a machine that has one.
"""

import dataclasses
import json
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
from tangent_jax.core import trees
from tangent_jax.linear import cg
from tangent_jax.pretrained.load import FAMILIES
from tangent_jax.programs import private_step, solver_pass, train_steps, train_steps_many
from tangent_jax.programs import trunk as program_of_trunk
from tangent_jax.rules import attention, cudnn
from tangent_jax.rules.probe import product
from tangent_jax.solver import passes
from tangent_jax.train.targets import call

ACCELERATORS = ("cuda", "tpu")
MECHANISM = tj.privacy.Mechanism(1.0, 2.0, 3, 1e-5)
OBJECTIVE = tj.make_objective("ce", penalty=1e-2)


@contextmanager
def nobody_asks_which_devices_there_are():
    """What is asked while a program is traced is asked of this machine, which may not be the one that runs it."""

    def asked(*_, **__):
        raise AssertionError("a program asks for the devices of the machine that traces it")

    with pytest.MonkeyPatch.context() as patch:
        for name in ("default_backend", "devices", "local_devices"):
            patch.setattr(jax, name, asked)
        yield


def lowered(platform, f, *arguments):
    """The program of f as StableHLO for a platform, or for several as one."""
    kernels = [export.DisabledSafetyCheck.custom_call(cudnn.TARGET)]  # no version of JAX promises them to the next
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
    program = train_steps(predict, tj.Batches(x, y, batch_size=2), OBJECTIVE, metrics=(tj.metrics.accuracy,))
    return program.run, *program.arguments


def epoch_of_many(predict, dw, x, y):
    """One epoch of `fit_many`: three models at once."""
    program = train_steps_many(predict, tj.Batches(x, y, batch_size=2), 3, OBJECTIVE)
    return program.run, *program.arguments


def solver(predict, dw, x, y):
    """What a pass of `solve` computes: kept products, gradient, Hessian's product, factors, a step."""

    def run(dw, part):
        keyed = jax.random.key(0)
        outputs = passes.outputs_of(part.jacobian, dw)
        kept, curvature = passes.keep_with_curvature(part, dw, outputs, OBJECTIVE, keyed, 0, 2)
        part = part._replace(jacobian=kept)
        (gradient, _), _, outputs = passes.add_gradient(passes.Summed(dw, jnp.zeros(())), part, dw, OBJECTIVE)
        bent = passes.add_product(dw, part, gradient, outputs, OBJECTIVE)
        return cg.step(cg.init(gradient), bent), curvature, passes.change_of(kept, dw)

    part = solver_pass(predict, tj.Batches(x, y, batch_size=4), OBJECTIVE, signals=2).curvature.arguments[0]
    return run, dw, part


def private(predict, dw, x, y):
    """One step of `fit_private`: clipped sums over two micro-batches, and noise."""
    program = private_step(predict, tj.Batches(x, y, batch_size=2), MECHANISM, OBJECTIVE)
    return program.run, *program.arguments


def vmapped(predict, dw, x, y):
    """The clipped sum of per-example gradients."""
    options = {"loss": tj.losses.CrossEntropy(), "clip_norm": 1.0, "chunk": 2}
    return partial(tj.privacy.clipped_sum, **options), predict, dw, x, y, jnp.ones(4)


def trunk(predict, dw, x, y):
    """Images to features."""
    program = program_of_trunk(predict, jnp.zeros((2, *predict.model.input_shape(0)), jnp.uint8))
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
FUSED = [(trunk, "ViT, half"), (outputs, "nlft")]  # in half precision, without a tangent, every token a query


@pytest.mark.parametrize(("program", "case"), PROGRAMS, ids=lambda value: getattr(value, "__name__", value))
def test_every_program_lowers_for_cuda_and_tpu_from_here_and_never_calls_the_host(program, case):
    f, *arguments = program(*CASES[case]())
    text = lowered(ACCELERATORS, f, *arguments)
    assert "callback" not in text
    assert ((program, case) in FUSED) == (cudnn.TARGET in text)


def test_the_program_for_cuda_has_cuda_s_convolution_and_a_cpu_s_its_own():
    f, *arguments = trunk(*CASES["resnet"]())
    counts = [lowered(platform, f, *arguments).count("stablehlo.convolution") for platform in ("cuda", "tpu", "cpu")]
    assert counts == [3, 3, 0]  # the stem's and a block's two


def test_halves_are_multiplied_as_they_are_where_the_sum_is_wide_all_the_same():
    half = jnp.ones((2, 3), jnp.bfloat16)
    texts = [lowered(platform, partial(product, "ij,kj->ik"), half, half) for platform in ("cuda", "tpu", "cpu")]
    for text in texts:
        assert "lhs_precision_type = bf16, rhs_precision_type = bf16, accumulation_type = f32" in text
        assert "-> tensor<2x2xf32>" in text


# Attention by cuDNN's kernel


def operands(shape=(2, 5, 3, 8), dtype="bfloat16"):
    return [normal(i, shape, jnp.dtype(dtype)) for i in range(3)]


def alone(q, k, v):
    """Attention without a tangent."""
    return attention(q, None, k, None, v, None)[0]


def custom_calls(text):
    """Every call of the kernel: its settings, and the rest of its line."""
    for line in text.splitlines():
        if cudnn.TARGET in line:
            line = line.split(" loc(")[0]
            start, stop = line.index('backend_config = "') + 18, line.index('", operand_layouts')
            yield json.loads(line[start:stop].replace("\\22", '"')), line[stop:], line[: start - 18].partition("=")[2]


def without_defaults(settings):
    """Settings without the fields that hold protobuf's defaults: unset is the same."""
    if not isinstance(settings, dict):
        return settings
    kept = {name: without_defaults(value) for name, value in settings.items()}
    return {name: value for name, value in kept.items() if value not in ([], 0, "0", False, "PRIMITIVE_TYPE_INVALID")}


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_the_kernel_is_called_as_jax_itself_calls_it(monkeypatch, dtype):
    from jax._src.cudnn import fused_attention_stablehlo as theirs

    monkeypatch.setattr(theirs, "check_cudnn_version", lambda: 91000)  # jax asks the machine that traces
    monkeypatch.setattr(theirs, "check_compute_capability", lambda *_: True)
    monkeypatch.setattr(theirs, "is_cuda_compute_capability_equal", lambda *_: False)
    q, k, v = operands(dtype=dtype)
    k, v = k[:, :4], v[:, :4]
    jax_s = partial(jax.nn.dot_product_attention, implementation="cudnn")
    (own, layouts, call), (want, *same) = (next(custom_calls(lowered("cuda", f, q, k, v))) for f in (alone, jax_s))
    assert [layouts, call] == same
    own, want = (without_defaults(settings)["cudnn_fmha_backend_config"] for settings in (own, want))
    assert own.pop("fmha_scale") == pytest.approx(want.pop("fmha_scale"), rel=1e-12)  # theirs by NumPy's root
    assert own == want


@pytest.mark.parametrize(
    ("shape", "dtype"), [((2, 5, 3, 8), "float32"), ((2, 5, 3, 4), "bfloat16"), ((2, 5, 3, 136), "bfloat16")]
)
def test_what_the_kernel_does_not_compute_is_never_given_to_it(shape, dtype):
    assert cudnn.TARGET not in lowered("cuda", alone, *operands(shape, dtype))
    assert cudnn.TARGET in lowered("cuda", alone, *operands((2, 5, 3, 128)))


def test_a_cpu_computes_what_it_computed_before():
    q, k, v = operands()
    a = jax.nn.softmax(jnp.einsum("bnhe,bmhe->bhnm", q * 8**-0.5, k).astype(jnp.float32)).astype(jnp.bfloat16)
    for f in (alone, jax.jit(alone)):
        assert (f(q, k, v) == jnp.einsum("bhnm,bmhe->bnhe", a, v)).all()


def test_where_it_is_differentiated_attention_is_formed_and_has_the_closed_form_s_tangent():
    x, dx = operands(), [normal(10 + i, (2, 5, 3, 8), jnp.bfloat16) for i in range(3)]
    want = attention(*(a for pair in zip(x, dx, strict=True) for a in pair))
    assert_rel_close(jax.jvp(alone, x, dx), want, TOLERANCE["bfloat16"])
    assert cudnn.TARGET not in lowered("cuda", lambda *x: jax.vjp(alone, *x)[1](x[0]), *x)


def test_examples_of_a_vmapped_axis_are_examples_as_others():
    q, k, v = operands()
    more = jnp.stack([q, 2 * q, 3 * q])
    f = jax.vmap(alone, (0, None, None))
    assert_rel_close(f(more, k, v), jnp.stack([alone(q, k, v) for q in more]))
    (settings, *_), *others = custom_calls(lowered("cuda", f, more, k, v))
    assert not others
    assert settings["cudnn_fmha_backend_config"]["intermediate_tensor_shape"]["dimensions"] == ["6", "3", "5", "5"]


def test_each_device_attends_to_its_own_examples():
    """The rule by which XLA divides the call, here about the plain form, as a CPU has no kernel."""
    code = """
import jax, jax.numpy as jnp, numpy as np
from jax.sharding import NamedSharding, PartitionSpec
from tangent_jax.rules.cudnn import over_devices
from tangent_jax.rules.multi_head import plain
rows = NamedSharding(jax.make_mesh((2,), ("examples",)), PartitionSpec("examples"))
q = jnp.asarray(np.random.default_rng(0).standard_normal((4, 5, 3, 8)), jnp.float32)
f = jax.jit(over_devices(plain)).lower(*[jax.device_put(q, rows)] * 3).compile()
assert "all-gather" not in f.as_text()
o = f(*[jax.device_put(q, rows)] * 3)
assert o.sharding.is_equivalent_to(rows, 4), o.sharding
assert np.allclose(o, plain(q, q, q), atol=1e-6)
"""
    environment = {**os.environ, "XLA_FLAGS": "--xla_force_host_platform_device_count=2"}
    subprocess.run([sys.executable, "-c", code], env=environment, check=True, timeout=120)


# Copies from the host, which JAX logs on a CPU too


def test_no_copy_is_of_one_step_or_one_micro_batch():
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
