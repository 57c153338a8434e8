"""Replay hand-made traces through the allocator."""

from dataclasses import replace

import pytest

from dflash_doctor.analyze.replay import alive_at, is_expandable, replay
from dflash_doctor.records.trace import AllocationTrace
from tests.doctor.trace_builder import TraceBuilder

MIB = 1 << 20
EXPANDABLE = "expandable_segments:True"


def mib(trace: TraceBuilder, size: int) -> int:
    """Enter a storage of that many MiB."""
    return trace.tensor(size * MIB, dtype="bool", category="activations")


def three_of_12() -> AllocationTrace:
    """Make 12 MiB, 12 MiB, free the first, make 12 MiB, free all."""
    trace = TraceBuilder()
    first, second = mib(trace, 12), mib(trace, 12)
    trace.free(first)
    third = mib(trace, 12)
    trace.free(second, third)
    return trace.build()


def test_a_trace_peaks_in_blocks_and_in_segments() -> None:
    played = replay(three_of_12())
    assert (played.peak_allocated_bytes, played.peak_reserved_bytes) == (24 * MIB, 24 * MIB)
    assert (played.allocated_bytes, played.reserved_bytes) == (0, 24 * MIB)
    assert (played.failed_at, played.failed_request_bytes, played.num_retries) == (None, None, 0)


def test_the_first_of_equal_peaks_is_the_peak() -> None:
    played = replay(three_of_12())
    assert (played.peak_event, played.alive_at_peak, played.reserved_at_peak_bytes) == (1, (0, 1), 24 * MIB)


def test_the_curve_has_every_birth() -> None:
    assert replay(three_of_12()).curve == (
        (0, 12 * MIB, 12 * MIB), (1, 24 * MIB, 24 * MIB), (3, 24 * MIB, 24 * MIB),
    )  # fmt: skip


def test_requests_are_rounded_to_blocks_and_empty_tensors_need_none() -> None:
    trace = TraceBuilder()
    trace.tensor(300, dtype="bool")
    empty = trace.tensor(0, 7)
    trace.tensor(513, dtype="bool")
    trace.free(empty)
    played = replay(trace.build())
    assert (played.allocated_bytes, played.reserved_bytes) == (512 + 1024, 2 * MIB)
    assert [event for event, _, _ in played.curve] == [0, 2]


def test_the_peaks_of_blocks_and_of_segments_may_lie_apart() -> None:
    """17 MiB of a 20 MiB segment are the peak of blocks; two kinds of segment come later."""
    trace = TraceBuilder()
    parts = [mib(trace, 9), mib(trace, 6), mib(trace, 2)]
    trace.free(*parts[:2])
    trace.tensor(512, dtype="bool")
    played = replay(trace.build())
    assert (played.peak_allocated_bytes, played.peak_event) == (17 * MIB, 2)
    assert played.reserved_at_peak_bytes == 20 * MIB
    assert played.peak_reserved_bytes == 22 * MIB


def test_a_request_that_the_cap_refuses_ends_the_replay() -> None:
    trace = TraceBuilder()
    mib(trace, 30)
    refused = mib(trace, 15)
    mib(trace, 1)
    trace.free(refused)
    played = replay(trace.build(), cap=40 * MIB)
    assert (played.failed_at, played.failed_request_bytes) == (1, 16 * MIB)
    assert (played.peak_allocated_bytes, played.allocated_bytes, played.reserved_bytes) == (30 * MIB,) * 3
    assert played.alive_at_peak == (0,)


def test_segments_that_went_back_are_counted_as_a_retry() -> None:
    trace = TraceBuilder()
    trace.free(mib(trace, 30))
    mib(trace, 40)
    played = replay(trace.build(), cap=50 * MIB)
    assert (played.failed_at, played.num_retries) == (None, 1)
    assert (played.peak_allocated_bytes, played.reserved_bytes) == (40 * MIB, 40 * MIB)
    assert replay(trace.build()).peak_reserved_bytes == 70 * MIB


@pytest.mark.parametrize(
    ("value", "expandable"),
    [
        ("", False),
        ("expandable_segments:True", True),
        ("expandable_segments: true", True),
        ("max_split_size_mb:512,expandable_segments:True", True),
        ("expandable_segments:False", False),
        ("garbage_collection_threshold:0.8", False),
    ],
)
def test_the_allocators_value_says_whether_segments_expand(value: str, expandable: bool) -> None:
    assert is_expandable(value) is expandable


def test_expandable_segments_reserve_pages_instead_of_segments() -> None:
    trace = TraceBuilder()
    trace.free(mib(trace, 30))
    mib(trace, 50)
    built = trace.build()
    assert replay(built).peak_reserved_bytes == 80 * MIB
    assert replay(built, allocator=EXPANDABLE).peak_reserved_bytes == 60 * MIB


def test_a_replay_may_end_with_a_phase() -> None:
    trace = TraceBuilder()
    trace.phases = [("load", 0)]
    mib(trace, 12)
    trace.phase("forward")
    mib(trace, 14)
    built = trace.build()
    loaded = replay(built, until="load")
    assert (loaded.allocated_bytes, loaded.peak_allocated_bytes, loaded.alive_at_peak) == (
        12 * MIB,
        12 * MIB,
        (0,),
    )
    assert replay(built, until="forward").allocated_bytes == 26 * MIB
    assert replay(built, until="nonesuch").allocated_bytes == 0


def growing() -> AllocationTrace:
    """Each step makes and frees 20 MiB; the first one then keeps 2 MiB, which lie where those lay."""
    trace = TraceBuilder()
    trace.phases = [("load", 0)]
    trace.tensor(512, dtype="bool")
    trace.phase("forward")
    trace.free(mib(trace, 20))
    mib(trace, 2)
    return replace(trace.build(), steady=(1, 4))


def test_a_steady_stretch_is_repeated_and_what_it_keeps_is_made_once() -> None:
    once, often = replay(growing(), steps=1), replay(growing(), steps=3)
    assert (once.peak_reserved_bytes, often.peak_reserved_bytes) == (22 * MIB, 42 * MIB)
    assert (once.peak_allocated_bytes, often.peak_allocated_bytes) == (20 * MIB + 512, 22 * MIB + 512)
    assert often.allocated_bytes == 2 * MIB + 512


def test_what_was_kept_is_alive_at_the_peak_of_a_later_step() -> None:
    assert replay(growing(), steps=1).alive_at_peak == (0, 1)
    assert set(replay(growing(), steps=3).alive_at_peak) == {0, 1, 2}


def test_steps_that_change_nothing_are_not_repeated() -> None:
    births = [event for event, _, _ in replay(growing(), steps=1_000).curve]
    assert births == [0, 1, 3, 1, 1]


def test_a_later_step_may_be_the_one_that_fails() -> None:
    played = replay(growing(), cap=40 * MIB, steps=3)
    assert replay(growing(), cap=40 * MIB, steps=1).failed_at is None
    assert (played.failed_at, played.failed_request_bytes) == (1, 20 * MIB)


def test_what_is_alive_is_known_after_every_event() -> None:
    trace = three_of_12()
    assert [alive_at(trace, event) for event in range(len(trace.events))] == [
        (0,), (0, 1), (1,), (1, 2), (2,), (),
    ]  # fmt: skip
