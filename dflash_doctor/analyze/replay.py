"""Run a trace's births and deaths through the allocator."""

from collections.abc import Iterable

from dflash_doctor.analyze.allocator import Block, CachingAllocator, OutOfMemory
from dflash_doctor.records.report import Replay
from dflash_doctor.records.trace import AllocationTrace

STEADY_STEPS = 3
"""Steps that a run must survive: the first fills the cache, the second meets its fragments."""


def is_expandable(allocator: str) -> bool:
    """Read `expandable_segments` from a PYTORCH_CUDA_ALLOC_CONF value."""
    return "expandable_segments:true" in allocator.replace(" ", "").lower()


def replay(
    trace: AllocationTrace, *, cap: int | None = None, allocator: str = "", steps: int = STEADY_STEPS,
    until: str | None = None,
) -> Replay:  # fmt: skip
    """Replay a trace, its steady stretch `steps` times, under a cap of reserved bytes.

    `until` names a phase after which to stop. A storage that the steady stretch makes and keeps is made once. Stops at the first request that
    cannot be had. Peaks are in bytes, of blocks and of segments.
    """
    device = CachingAllocator(cap=cap, expandable=is_expandable(allocator))
    sizes = [storage.bytes for storage in trace.storages]
    blocks: dict[int, Block] = {}
    curve: list[tuple[int, int, int]] = []
    peak = reserved_peak = peak_event = reserved_at_peak = 0
    alive: tuple[int, ...] = ()
    failed: tuple[int, int] | None = None
    for event, number in _numbered(trace, steps, until):
        if number < 0:
            block = blocks.pop(-number - 1, None)
            if block is not None:
                device.free(block)
            continue
        size = sizes[number - 1]
        if size == 0 or number - 1 in blocks:
            continue
        try:
            blocks[number - 1] = device.malloc(size)
        except OutOfMemory as refused:
            failed = (event, refused.request_bytes)
            break
        reserved_peak = max(reserved_peak, device.reserved)
        if device.allocated > peak:
            peak, peak_event, reserved_at_peak = device.allocated, event, device.reserved
        curve.append((event, device.allocated, device.reserved))
    alive = alive_at(trace, peak_event)
    return Replay(
        peak_allocated_bytes=peak,
        peak_reserved_bytes=reserved_peak,
        peak_event=peak_event,
        alive_at_peak=alive,
        reserved_at_peak_bytes=reserved_at_peak,
        failed_at=failed[0] if failed else None,
        failed_request_bytes=failed[1] if failed else None,
        num_retries=device.num_retries,
        curve=tuple(curve),
        allocated_bytes=device.allocated,
        reserved_bytes=device.reserved,
    )


def _numbered(trace: AllocationTrace, steps: int, until: str | None) -> Iterable[tuple[int, int]]:
    if until is not None:
        stop = next((phase.stop for phase in trace.phases if phase.name == until), 0)
        yield from enumerate(trace.events[:stop])
        return
    if trace.steady is None:
        yield from enumerate(trace.events)
        return
    start, stop = trace.steady
    yield from enumerate(trace.events[:stop])
    for _ in range(steps - 1):
        yield from enumerate(trace.events[start:stop], start)


def alive_at(trace: AllocationTrace, event: int) -> tuple[int, ...]:
    """List the ids of the storages alive right after an event."""
    alive: dict[int, None] = {}
    for number in trace.events[: event + 1]:
        if number > 0:
            alive[number - 1] = None
        else:
            alive.pop(-number - 1, None)
    return tuple(alive)
