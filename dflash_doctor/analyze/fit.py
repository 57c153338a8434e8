"""Judge whether a trace fits a card: the capped replay is the criterion, the uncapped one information."""

from dataclasses import dataclass
from typing import NamedTuple

from dflash_doctor.analyze.replay import is_expandable, replay
from dflash_doctor.records.plan import ByteBand, Card
from dflash_doctor.records.report import Replay, Verdict
from dflash_doctor.records.source import short_source
from dflash_doctor.records.trace import AllocationTrace
from dflash_doctor.units import format_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Fit:
    """A verdict with the replay that shows the peaks and, where it does not fit, the refused request.

    `reserved_bytes` is the reserved peak of the replay that decided: the uncapped one, or the capped one
    where the run fits only by giving cached memory back. Headroom follows from it.
    """

    verdict: Verdict
    reason: str
    uncapped: Replay
    reserved_bytes: int
    headroom_bytes: int
    failed_request_bytes: int | None


def outside_pytorch(card: Card, num_peers: int) -> ByteBand:
    """Model what lies outside the allocator: the CUDA context, and NCCL's buffers for each peer."""
    context, nccl = card.context, card.nccl_per_peer
    return ByteBand(
        low=context.low + num_peers * nccl.low,
        likely=context.likely + num_peers * nccl.likely,
        high=context.high + num_peers * nccl.high,
        basis=f"modelled: CUDA context and NCCL buffers for {num_peers} peer{'s' * (num_peers != 1)}",
    )


def judge(trace: AllocationTrace, *, capacity: int, outside: ByteBand, margin: float, allocator: str) -> Fit:
    """Replay a trace's loading and three steady steps without a cap, with the margin, and without it.

    `capacity` is in bytes; the caps are capacity x (1 - margin) - outside, and capacity - outside.
    """
    uncapped = replay(trace, allocator=allocator)
    whole = capacity - outside.likely
    unknown = unknown_value(trace) or _nothing_on_device(uncapped)
    if unknown is not None:
        verdict, reason, decided = _Decision("unknown", unknown, uncapped)
    else:
        roomy = int(capacity * (1 - margin)) - outside.likely
        verdict, reason, decided = _try_caps(trace, uncapped, roomy, whole, allocator)
    reserved = (uncapped if verdict == "wont-fit" else decided).peak_reserved_bytes
    return Fit(
        verdict=verdict, reason=reason, uncapped=uncapped, reserved_bytes=reserved,
        headroom_bytes=whole - reserved, failed_request_bytes=decided.failed_request_bytes,
    )  # fmt: skip


class _Decision(NamedTuple):
    verdict: Verdict
    reason: str
    decided: Replay


def _try_caps(trace: AllocationTrace, uncapped: Replay, roomy: int, whole: int, allocator: str) -> _Decision:
    if uncapped.peak_reserved_bytes <= roomy:
        return _Decision("fits", "", uncapped)
    without = f"without a cap {format_bytes(uncapped.peak_reserved_bytes)} would be reserved"
    if uncapped.peak_allocated_bytes <= roomy:
        capped = replay(trace, cap=roomy, allocator=allocator)
        if capped.failed_at is None:
            return _Decision("fits", f"by giving cached memory back on the way; {without}", capped)
    if uncapped.peak_reserved_bytes <= whole:
        return _Decision("tight", "it fits, but with less to spare than the margin", uncapped)
    capped = replay(trace, cap=max(whole, 0), allocator=allocator)
    if capped.failed_at is None:
        reason = f"less to spare than the margin, and only by giving cached memory back; {without}"
        return _Decision("tight", reason, capped)
    return _Decision("wont-fit", _failure(trace, capped, allocator), capped)


def _nothing_on_device(uncapped: Replay) -> str | None:
    if uncapped.peak_allocated_bytes:
        return None
    return "the step put nothing on the device that it was handed"


def _failure(trace: AllocationTrace, capped: Replay, allocator: str) -> str:
    if capped.failed_at is None or capped.failed_request_bytes is None:
        raise ValueError("the replay did not fail")
    site = trace.storages[abs(trace.events[capped.failed_at]) - 1].site
    where = site.module or "the step"
    text = f"{format_bytes(capped.failed_request_bytes)} cannot be had in {where} ({site.op}, {site.phase})"
    if not is_expandable(allocator) and capped.reserved_bytes - capped.allocated_bytes > (1 << 30):
        idle = capped.reserved_bytes - capped.allocated_bytes
        text += f"; {format_bytes(idle)} are reserved but in pieces too small"
    return text


def unknown_value(trace: AllocationTrace) -> str | None:
    """Name the first value that was read back, not known, and followed by allocations in the same step.

    Single floating-point numbers (a loss, a gradient norm) are read for logging and decide no shape; what
    is read at a step's end sizes nothing in it.
    """
    shaping = [
        read
        for read in trace.value_reads
        if not read.known and not read.floating and _is_followed(trace, read.event)
    ]
    if not shaping:
        return None
    first = min(shaping, key=lambda read: read.event)
    stack = first.site.stack
    place = short_source(f"{stack[0].file}:{stack[0].line}") if stack else first.site.module
    return f"the step reads a value back from the device that no forecast can know, at {place}"


def _is_followed(trace: AllocationTrace, event: int) -> bool:
    starts = (phase.start for phase in trace.phases if phase.name == "forward" and phase.start > event)
    return any(number > 0 for number in trace.events[event : min(starts, default=len(trace.events))])
