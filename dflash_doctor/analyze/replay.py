"""Run a trace's births and deaths through the allocator."""

from collections.abc import Iterable, Sequence

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

    A storage that the steady stretch makes and keeps is made once; steps that leave the allocator as they
    found it are not repeated. `until` names a phase after which to stop. Stops at the first request that
    cannot be had. Peaks are in bytes, of blocks and of segments.
    """
    player = _Player(trace, CachingAllocator(cap=cap, expandable=is_expandable(allocator)))
    if until is not None:
        player.play(0, next((phase.stop for phase in trace.phases if phase.name == until), 0))
        return player.result()
    if trace.steady is None:
        player.play(0, len(trace.events))
        return player.result()
    start, stop = trace.steady
    player.play(0, stop)
    layout = player.device.layout()
    for _ in range(steps - 1):
        player.again(start, stop)
        before, layout = layout, player.device.layout()
        if player.failed is not None or layout == before:
            break
    return player.result()


class _Player:
    """Play stretches of a trace's events on one allocator and watch the peaks."""

    def __init__(self, trace: AllocationTrace, device: CachingAllocator) -> None:
        self.trace, self.device = trace, device
        self.failed: tuple[int, int] | None = None
        self._sizes = [storage.bytes for storage in trace.storages]
        self._blocks: dict[int, Block] = {}
        self._curve: list[tuple[int, int, int]] = []
        self._peak = self._reserved_peak = self._reserved_at_peak = 0
        self._peak_event = self._peak_pass = self._pass = 0

    def again(self, start: int, stop: int) -> None:
        """Play the steady stretch once more."""
        self._pass += 1
        self.play(start, stop)

    def play(self, start: int, stop: int) -> None:
        """Play the events of [start, stop) until a request cannot be had."""
        device, blocks, sizes, curve = self.device, self._blocks, self._sizes, self._curve
        for event, number in enumerate(self.trace.events[start:stop], start):
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
                self.failed = (event, refused.request_bytes)
                return
            self._reserved_peak = max(self._reserved_peak, device.reserved)
            if device.allocated > self._peak:
                self._peak, self._reserved_at_peak = device.allocated, device.reserved
                self._peak_event, self._peak_pass = event, self._pass
            curve.append((event, device.allocated, device.reserved))

    def result(self) -> Replay:
        """Sum up what was seen."""
        return Replay(
            peak_allocated_bytes=self._peak,
            peak_reserved_bytes=self._reserved_peak,
            peak_event=self._peak_event,
            alive_at_peak=alive_at(self.trace, self._peak_event, repeated=self._peak_pass > 0),
            reserved_at_peak_bytes=self._reserved_at_peak,
            failed_at=self.failed[0] if self.failed else None,
            failed_request_bytes=self.failed[1] if self.failed else None,
            num_retries=self.device.num_retries,
            curve=tuple(self._curve),
            allocated_bytes=self.device.allocated,
            reserved_bytes=self.device.reserved,
        )


def alive_at(trace: AllocationTrace, event: int, *, repeated: bool = False) -> tuple[int, ...]:
    """List the ids of the storages alive right after an event; `repeated`: in a later steady step."""
    stretches: list[Sequence[int]] = [trace.events[: event + 1]]
    if repeated and trace.steady is not None:
        start, stop = trace.steady
        stretches = [trace.events[:stop], trace.events[start : event + 1]]
    return tuple(_alive_after(number for stretch in stretches for number in stretch))


def _alive_after(numbers: Iterable[int]) -> dict[int, None]:
    alive: dict[int, None] = {}
    for number in numbers:
        if number > 0:
            alive[number - 1] = None
        else:
            alive.pop(-number - 1, None)
    return alive
