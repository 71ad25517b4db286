"""Programs compiled for a GPU that is not there; the compilation itself needs JAX's plugin for CUDA."""

import importlib.util

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import SingleDeviceSharding

from experiments.bench.kernels import kernels_of, measure, without_device
from experiments.shared.steps import Step
from tangent_jax.core.checks import InputError

LOOP = """
%fused_add (param_0: f32[4]) -> f32[4] {
  %copy.7 = f32[4]{0} copy(%param_0)
  %copy.8 = f32[4]{0} copy(%copy.7)
  %copy.9 = f32[4]{0} copy(%copy.8)
  ROOT %add.1 = f32[4]{0} add(%copy.9, %copy.9)
}

%body.1 (state: (s32[], f32[4])) -> (s32[], f32[4]) {
  %i = s32[] get-tuple-element(%state), index=0
  %loop_fusion = f32[4]{0} fusion(%i), kind=kLoop, calls=%fused_add
  %product = (f32[4]{0}, s8[8]{0}) custom-call(%loop_fusion), custom_call_target="matmul"
  ROOT %next = (s32[], f32[4]{0}) tuple(%i, %loop_fusion)
}

ENTRY %main (x: f32[4]) -> f32[4] {
  %copy.1 = f32[4]{0} copy(%x)
  ROOT %while.1 = (s32[], f32[4]{0}) while(%copy.1), body=%body.1
}
"""


def test_kernels_are_those_of_one_round_of_the_loop():
    assert kernels_of(LOOP) == 2


def test_a_small_loop_counts_beside_all_others():
    longer = LOOP.replace("  %copy.1 =", "  %a = f32[4]{0} fusion-start(%x)\n  %b = f32[4]{0} fusion(%x)\n  %copy.1 =")
    assert kernels_of(longer) == 5


def test_a_program_has_kernels_and_memory():
    step = Step(lambda x: jnp.tanh(x @ x).sum(), (jnp.ones((8, 8)),))
    found = measure(step, SingleDeviceSharding(jax.devices()[0]))
    assert found["kernels"] >= 1
    assert found["mebibytes"] >= 0


@pytest.mark.skipif(importlib.util.find_spec("jax_plugins") is not None, reason="has a plugin for an accelerator")
def test_without_the_plugin_one_sentence_says_what_to_install():
    with pytest.raises(InputError, match=r"JAX must have its plugin for CUDA.*pip install '.\[cuda12\]'"):
        without_device()
