"""Judge hand-made traces; sizes in MiB unless they say GiB."""

from dataclasses import replace

import pytest

from dflash_doctor.analyze.fit import Fit, judge, outside_pytorch
from dflash_doctor.records.plan import ByteBand
from dflash_doctor.records.trace import AllocationTrace
from tests.doctor.report_builder import band, card
from tests.doctor.trace_builder import TraceBuilder

MIB = 2**20
EXPANDABLE = "expandable_segments:True"
GIVES_BACK = "by giving cached memory back on the way; without a cap 220.00 MiB would be reserved"


def take(trace: TraceBuilder, mib: int, name: str = "mm.default", line: int = 1) -> int:
    return trace.op(name, out=(mib * MIB // 2,), line=line, module="layers.3.mlp")


def one_block() -> AllocationTrace:
    """Hold 100 MiB."""
    trace = TraceBuilder()
    take(trace, 100)
    return trace.build()


def cached_block() -> AllocationTrace:
    """Free 100 MiB, then hold 120: 220 are reserved unless the 100 are given back."""
    trace = TraceBuilder()
    trace.free(take(trace, 100))
    take(trace, 120)
    return trace.build()


def fragments() -> AllocationTrace:
    """Leave 1.5 GiB of a 4 GiB segment free, beside 2.5 GiB in use, and ask for 2 GiB."""
    trace = TraceBuilder()
    trace.free(take(trace, 4096))
    take(trace, 2560)
    take(trace, 2048, "index_select.default")
    return trace.build()


def judged(
    trace: AllocationTrace, capacity: int, *, outside: int = 0, margin: float = 0.04, allocator: str = ""
) -> Fit:
    return judge(
        trace, capacity=capacity * MIB, outside=band(outside * MIB), margin=margin, allocator=allocator
    )


def test_what_is_outside_grows_with_the_peers() -> None:
    context = ByteBand(low=100, likely=200, high=400, basis="context")
    nccl = ByteBand(low=1, likely=10, high=50, basis="nccl")
    outside = outside_pytorch(replace(card(), context=context, nccl_per_peer=nccl), 7)
    assert (outside.low, outside.likely, outside.high) == (107, 270, 750)
    assert outside.basis == "modelled: CUDA context and NCCL buffers for 7 peers"
    assert outside_pytorch(card(), 1).basis.endswith("for 1 peer")


@pytest.mark.parametrize(
    ("trace", "capacity", "verdict", "reason"),
    [
        (one_block(), 200, "fits", ""),
        (one_block(), 105, "fits", ""),
        (one_block(), 104, "tight", "it fits, but with less to spare than the margin"),
        (one_block(), 100, "tight", "it fits, but with less to spare than the margin"),
        (one_block(), 99, "wont-fit", "100.00 MiB cannot be had in layers.3.mlp (aten.mm.default, forward)"),
        (cached_block(), 230, "fits", ""),
        (cached_block(), 229, "fits", GIVES_BACK),
        (cached_block(), 125, "fits", GIVES_BACK),
        (
            cached_block(),
            124,
            "tight",
            "less to spare than the margin, and only by giving cached memory back; "
            "without a cap 220.00 MiB would be reserved",
        ),
        (
            cached_block(),
            119,
            "wont-fit",
            "120.00 MiB cannot be had in layers.3.mlp (aten.mm.default, forward)",
        ),
    ],
)
def test_the_capped_run_decides(trace: AllocationTrace, capacity: int, verdict: str, reason: str) -> None:
    found = judged(trace, capacity)
    assert (found.verdict, found.reason) == (verdict, reason)


def test_what_is_outside_comes_off_the_capacity() -> None:
    assert judged(one_block(), 115, outside=10).verdict == "fits"
    assert judged(one_block(), 114, outside=10).verdict == "tight"
    assert judged(one_block(), 109, outside=10).verdict == "wont-fit"


def test_an_uncapped_run_is_information_only() -> None:
    found = judged(cached_block(), 200, outside=10)
    assert found.verdict == "fits"
    assert found.uncapped.peak_reserved_bytes == 220 * MIB
    assert found.reserved_bytes == 120 * MIB
    assert found.headroom_bytes == (200 - 10 - 120) * MIB
    assert found.failed_request_bytes is None


def test_no_margin_makes_nothing_tight() -> None:
    assert judged(one_block(), 100, margin=0).verdict == "fits"
    assert judged(cached_block(), 120, margin=0).verdict == "fits"


def test_nothing_fits_a_card_that_others_fill() -> None:
    found = judged(one_block(), 10, outside=20)
    assert (found.verdict, found.failed_request_bytes) == ("wont-fit", 100 * MIB)
    assert found.headroom_bytes == -110 * MIB


def test_fragments_are_named_where_they_refuse() -> None:
    found = judged(fragments(), 5120)
    assert found.verdict == "wont-fit"
    assert found.failed_request_bytes == 2048 * MIB
    assert found.reason == (
        "2.00 GiB cannot be had in layers.3.mlp (aten.index_select.default, forward); "
        "1.50 GiB are reserved but in pieces too small"
    )


def test_expandable_segments_leave_no_such_fragments() -> None:
    assert judged(fragments(), 5120, allocator=EXPANDABLE).verdict == "fits"
    found = judged(fragments(), 4500, allocator=EXPANDABLE)
    assert found.verdict == "wont-fit"
    assert "pieces" not in found.reason


def test_a_later_step_meets_what_the_first_has_left() -> None:
    trace = TraceBuilder()
    trace.free(take(trace, 60), take(trace, 150))
    trace.free(take(trace, 160, "add.Tensor"))
    once = trace.build()
    steady = replace(once, steady=(0, len(once.events)))
    assert judged(once, 215, margin=0).verdict == "fits"
    found = judged(steady, 215, margin=0)
    assert found.uncapped.peak_allocated_bytes == 210 * MIB
    assert (found.verdict, found.failed_request_bytes) == ("wont-fit", 150 * MIB)
    assert judged(steady, 220, margin=0, allocator=EXPANDABLE).verdict == "fits"


def test_an_unknown_value_before_the_peak_leaves_the_verdict_unknown() -> None:
    trace = TraceBuilder()
    take(trace, 10)
    trace.value_read(17, known=False)
    take(trace, 100)
    found = judged(trace.build(), 1000)
    assert found.verdict == "unknown"
    assert found.reason == (
        "the step reads a value back from the device that no forecast can know, at model.py:17"
    )
    assert found.failed_request_bytes is None
    assert found.uncapped.peak_allocated_bytes == 110 * MIB
    assert found.headroom_bytes == 890 * MIB


def test_the_first_unknown_value_is_named() -> None:
    trace = TraceBuilder()
    trace.value_read(5, known=True)
    take(trace, 10)
    trace.value_read(30, known=False)
    take(trace, 10)
    trace.value_read(20, known=False)
    take(trace, 100)
    assert judged(trace.build(), 1000).reason.endswith("at model.py:30")


@pytest.mark.parametrize("known", [True, False])
def test_known_values_and_values_after_the_peak_do_no_harm(known: bool) -> None:
    trace = TraceBuilder()
    if known:
        trace.value_read(17, known=True)
    big = take(trace, 100)
    trace.free(big)
    take(trace, 10)
    if not known:
        trace.value_read(17, known=False)
    assert judged(trace.build(), 1000).verdict == "fits"


def test_a_single_floating_point_number_decides_no_shape() -> None:
    trace = TraceBuilder()
    take(trace, 10)
    trace.value_read(17, known=False)
    take(trace, 100)
    built = trace.build()
    (read,) = built.value_reads
    assert judged(replace(built, value_reads=(replace(read, floating=True),)), 1000).verdict == "fits"
    assert judged(built, 1000).verdict == "unknown"


def test_a_read_right_before_the_peak_counts_and_one_right_after_does_not() -> None:
    trace = TraceBuilder()
    trace.value_read(17, known=False)
    big = take(trace, 100)
    before = trace.build()
    assert (before.value_reads[0].event, before.events) == (0, (big + 1,))
    after = replace(before, value_reads=(replace(before.value_reads[0], event=1),))
    assert judged(before, 1000).verdict == "unknown"
    assert judged(after, 1000).verdict == "fits"
