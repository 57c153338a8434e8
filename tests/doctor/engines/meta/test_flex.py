"""The stand-in for compiled flex attention."""

import torch
from torch.nn.attention import flex_attention as flex

from dflash_doctor.records.trace import AllocationTrace
from tests.doctor.engines.tracing import Step, backward_of, made_by, made_in_step, trace_step

QUERIES, KEYS = (1, 8, 256, 64), (1, 2, 1024, 64)
QUERY_BYTES, KEY_BYTES, ROW_BYTES = 8 * 256 * 64 * 2, 2 * 1024 * 64 * 2, 8 * 256 * 4


def trace_flex(*, trains: bool) -> AllocationTrace:
    def build() -> Step:
        query = torch.empty(QUERIES, dtype=torch.bfloat16, requires_grad=trains)
        key, value = (torch.empty(KEYS, dtype=torch.bfloat16, requires_grad=trains) for _ in range(2))
        compiled = torch.compile(flex.flex_attention, dynamic=False)

        def step() -> None:
            out = compiled(query, key, value, block_mask=None, scale=0.125, enable_gqa=True)
            if trains:
                backward_of(out)

        return step

    return trace_step(build)


def test_forward_makes_row_sums_maxima_and_the_output() -> None:
    sums, maxima, out = made_in_step(trace_flex(trains=False))
    assert (sums.bytes, maxima.bytes, out.bytes) == (ROW_BYTES, ROW_BYTES, QUERY_BYTES)
    assert (sums.dtype, maxima.dtype, out.dtype) == ("float32", "float32", "bfloat16")


def test_backward_makes_a_row_number_and_three_gradients() -> None:
    made = [s for s in made_in_step(trace_flex(trains=True)) if s.site.phase == "backward"]
    assert [s.bytes for s in made] == [ROW_BYTES, QUERY_BYTES, KEY_BYTES, KEY_BYTES]


def test_row_sums_and_output_are_saved_for_backward_and_maxima_are_not() -> None:
    trace = trace_flex(trains=True)
    start = next(op.index for op in trace.ops if op.site.phase == "backward")
    sums, maxima, out = [s for s in made_in_step(trace) if s.site.phase == "forward"][:3]
    assert maxima.died_at is not None and maxima.died_at < start
    assert sums.died_at is not None and sums.died_at >= start
    assert out.died_at is not None and out.died_at >= start


def test_row_sums_are_returned_where_they_are_asked_for() -> None:
    shapes: list[torch.Size] = []

    def build() -> Step:
        query, key = (torch.empty(shape, dtype=torch.bfloat16) for shape in (QUERIES, KEYS))

        def step() -> None:
            out, sums = flex.flex_attention(query, key, key, return_lse=True)
            shapes.extend([out.shape, sums.shape])

        return step

    trace_step(build)
    assert shapes == [QUERIES, QUERIES[:-1]]


def test_nothing_is_compiled() -> None:
    calls: list[str] = []

    def build() -> Step:
        @torch.compile(dynamic=True)
        def decorated() -> None:
            calls.append("decorated")

        @torch.compile
        def plain() -> None:
            calls.append("plain")

        return lambda: (decorated(), plain())

    assert made_by(trace_step(build), "empty") == []
    assert calls == ["decorated", "plain"]
