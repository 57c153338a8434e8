"""Gated DeltaNet: the kernel that the plan names, the fallback cut short, and nothing left behind."""

import importlib
from typing import Any

import pytest
import torch

from dflash_doctor.engines.meta.linear_attention import LOOP_TURNS, linear_attention
from tests.doctor.engines.tracing import Step, ops_named, trace_step

TOKENS, KEY_HEADS, HEADS, WIDTH = 1024, 2, 4, 64
CHUNKS = TOKENS // 64


def modeling() -> Any:
    return importlib.import_module("transformers.models.qwen3_5.modeling_qwen3_5")


def inputs(key_heads: int = KEY_HEADS, trains: bool = False) -> list[torch.Tensor]:
    """Make query, key [B, T, G, K], value [B, T, H, V], and decay and gate [B, T, H]."""
    widths = (key_heads, key_heads, HEADS)
    halves = [
        torch.empty(1, TOKENS, heads, WIDTH, dtype=torch.bfloat16, requires_grad=trains) for heads in widths
    ]
    decay = torch.empty(1, TOKENS, HEADS, requires_grad=trains)
    return [*halves, decay, torch.empty(1, TOKENS, HEADS, dtype=torch.bfloat16, requires_grad=trains)]


def fallback_ops(*, trains: bool) -> int:
    def build() -> Step:
        made = inputs(HEADS, trains)

        def step() -> None:
            with linear_attention("fallback"), torch.set_grad_enabled(trains):
                modeling().torch_chunk_gated_delta_rule(*made)

        return step

    modeling()
    return len(ops_named(trace_step(build), "bmm"))


def test_the_fallback_runs_a_few_turns_without_gradients_and_all_with_them() -> None:
    short, whole = fallback_ops(trains=False), fallback_ops(trains=True)
    assert LOOP_TURNS < CHUNKS
    assert short < whole
    assert (whole - short) % (CHUNKS - LOOP_TURNS) == 0


def test_the_fallback_refuses_packed_documents() -> None:
    modeling()
    with linear_attention("fallback"), pytest.raises(ValueError, match="cannot keep packed documents apart"):
        modeling().torch_chunk_gated_delta_rule(*inputs(HEADS), cu_seqlens=torch.tensor([0, TOKENS]))


@pytest.mark.parametrize("kind", ["fused", "fallback"])
def test_transformers_is_as_it_was_afterwards(kind: Any) -> None:
    names = ("torch_chunk_gated_delta_rule", "causal_conv1d_fn", "causal_conv1d_update")
    before = {name: vars(modeling())[name] for name in names if name in vars(modeling())}
    with pytest.raises(RuntimeError, match="in the step"), linear_attention(kind):
        assert modeling().torch_chunk_gated_delta_rule is not before["torch_chunk_gated_delta_rule"]
        raise RuntimeError("in the step")
    assert {name: vars(modeling())[name] for name in before} == before
