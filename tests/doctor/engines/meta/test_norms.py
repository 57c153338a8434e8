"""The stand-in for CUDA's fused RMSNorm."""

import pytest
import torch

from dflash_doctor.engines.meta.norms import fused_rms_norm, norm_parts
from tests.doctor.engines.tracing import A100, Step, made_in_step, trace_step


@pytest.mark.parametrize(
    ("rows", "width", "parts"),
    [
        (65_536, 128, None),
        (65_537, 128, (2049, 128)),
        (200_000, 128, (6250, 128)),
        (70_000, 768, (1365, 768)),
        (70_000, 54 * 32, None),
        (70_000, 53 * 32, (618, 53 * 32)),
    ],
)
def test_weights_gradients_are_summed_in_parts_where_rows_are_many_and_narrow(
    rows: int, width: int, parts: tuple[int, int] | None
) -> None:
    """A part has 32 rows, there are at most 32,768 blocks of 32 columns, and 54 is half of 108."""
    assert norm_parts(rows, width, A100) == parts


def backward_bytes(*, input_trains: bool = True, weight_trains: bool = True) -> list[int]:
    def build() -> Step:
        x = torch.empty(3, 5, 64, requires_grad=input_trains)
        weight = torch.empty(64, requires_grad=weight_trains)

        def step() -> None:
            out = fused_rms_norm(x, (64,), weight, A100)
            assert (out.shape, out.dtype) == (x.shape, x.dtype)
            out.backward(torch.empty_like(out))

        return step

    return [s.bytes for s in made_in_step(trace_step(build)) if s.site.phase == "backward"]


def test_only_gradients_that_are_wanted_are_made() -> None:
    assert backward_bytes() == [3840, 256]
    assert backward_bytes(weight_trains=False) == [3840]
    assert backward_bytes(input_trains=False) == [256]


def test_a_norm_may_have_no_weight_and_span_several_dimensions() -> None:
    def build() -> Step:
        x = torch.empty(3, 5, 64, dtype=torch.bfloat16)
        return lambda: fused_rms_norm(x, (5, 64), None, A100)

    assert [(s.bytes, s.dtype) for s in made_in_step(trace_step(build))] == [
        (1920, "bfloat16"),
        (12, "float32"),
    ]


def test_the_output_lies_dense_whatever_the_input_does() -> None:
    x = torch.empty(64, 5, device="meta").t()
    assert fused_rms_norm(x, (64,), None, A100).is_contiguous()
