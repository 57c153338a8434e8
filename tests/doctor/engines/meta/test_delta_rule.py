"""The stand-in for flash-linear-attention's fused Gated DeltaNet."""

from typing import Any

import torch

from dflash_doctor.engines.meta.delta_rule import fused_delta_rule
from dflash_doctor.records.trace import AllocationTrace
from tests.doctor.engines.tracing import MIB, Step, made_in_step, trace_step

TOKENS, KEY_HEADS, HEADS, WIDTH = 1024, 2, 4, 64
CHUNKS = TOKENS // 64


def inputs(key_heads: int = KEY_HEADS, trains: bool = False) -> list[torch.Tensor]:
    """Make query, key [B, T, G, K], value [B, T, H, V], and decay and gate [B, T, H]."""
    widths = (key_heads, key_heads, HEADS)
    halves = [
        torch.empty(1, TOKENS, heads, WIDTH, dtype=torch.bfloat16, requires_grad=trains) for heads in widths
    ]
    decay = torch.empty(1, TOKENS, HEADS, requires_grad=trains)
    return [*halves, decay, torch.empty(1, TOKENS, HEADS, dtype=torch.bfloat16, requires_grad=trains)]


def trace_fused(*, trains: bool = False, **options: Any) -> AllocationTrace:
    def build() -> Step:
        made = inputs(trains=trains)

        def step() -> None:
            out, _ = fused_delta_rule(*made, **options)
            if trains:
                out.backward(torch.empty_like(out))

        return step

    return trace_step(build)


def test_the_fused_forward_allocates_states_of_every_chunk() -> None:
    made = [s for s in made_in_step(trace_fused()) if s.shape]
    rows = HEADS * TOKENS * WIDTH * 2
    assert sorted(s.bytes for s in made) == sorted(
        [
            TOKENS * HEADS * 4,
            TOKENS * HEADS * 64 * 2,
            rows,
            rows,
            CHUNKS * HEADS * WIDTH * WIDTH * 2,
            rows,
            rows,
        ]
    )
    assert [s.dtype for s in made].count("float32") == 1


def test_the_fused_forward_returns_a_float32_state_only_where_asked() -> None:
    def build() -> Step:
        made = inputs()

        def step() -> None:
            assert fused_delta_rule(*made)[1] is None
            out, state = fused_delta_rule(*made, output_final_state=True)
            assert state is not None
            assert (out.shape, state.shape) == ((1, TOKENS, HEADS, WIDTH), (1, HEADS, WIDTH, WIDTH))
            assert state.dtype == torch.float32

        return step

    trace_step(build)


def test_normalising_makes_copies_of_queries_and_keys_with_a_number_a_row() -> None:
    plain, normalised = (len(made_in_step(trace_fused(use_qk_l2norm_in_kernel=on))) for on in (False, True))
    assert normalised - plain == 4


def test_backward_gives_gradients_of_the_shapes_of_the_inputs() -> None:
    made: list[torch.Tensor] = []

    def build() -> Step:
        made.extend(inputs(trains=True))
        return lambda: fused_delta_rule(*made)[0].sum().backward()

    trace_step(build)
    for tensor in made:
        assert tensor.grad is not None
        assert (tensor.grad.shape, tensor.grad.dtype) == (tensor.shape, tensor.dtype)


def test_no_pass_makes_a_square_of_the_length() -> None:
    assert all(s.bytes < TOKENS * TOKENS for s in made_in_step(trace_fused(trains=True)))


def test_fused_states_at_a_long_row_are_as_large_as_the_kernel_makes_them() -> None:
    """65,536 tokens of 48 heads of 128: 1,024 chunks of states, 48 x 128 x 128 x 2 B each, 1.5 GiB."""

    def build() -> Step:
        key = torch.empty(1, 65_536, 16, 128, dtype=torch.bfloat16)
        value = torch.empty(1, 65_536, 48, 128, dtype=torch.bfloat16)
        decay = torch.empty(1, 65_536, 48)
        return lambda: fused_delta_rule(key, key, value, decay, decay.bfloat16())

    assert 1536 * MIB in {storage.bytes for storage in made_in_step(trace_step(build))}
