"""Turn a role's trace and its fit into what is reported of one GPU."""

from collections import Counter
from collections.abc import Iterable

from dflash_doctor.analyze.allocator import round_size
from dflash_doctor.analyze.fit import Fit
from dflash_doctor.records.plan import ByteBand, Card
from dflash_doctor.records.report import GpuReport, PeakAt
from dflash_doctor.records.trace import AllocationTrace, Site

RESIDENT = frozenset(
    {"weights", "buffers", "tables", "master_weights", "optimizer_state", "inputs", "workspace"}
)  # fmt: skip
"""Categories that live through all steps; gradients come and go, features are told apart."""


def gpu_report(
    index: int, role: str, trace: AllocationTrace, fit: Fit, card: Card, outside: ByteBand
) -> GpuReport:
    """Report one GPU from its role's trace and fit."""
    alive = fit.uncapped.alive_at_peak
    by_category = sum_by_category(trace, alive)
    resident = {name: size for name, size in by_category.items() if name in RESIDENT}
    features = by_category.get("features", 0)
    return GpuReport(
        index=index,
        role=role,
        peak_allocated_bytes=fit.uncapped.peak_allocated_bytes,
        peak_reserved_bytes=fit.reserved_bytes,
        outside=outside,
        capacity_bytes=card.usable_bytes,
        headroom_bytes=fit.headroom_bytes,
        resident_bytes=resident,
        features_bytes=features,
        activation_peak_bytes=sum(by_category.values()) - sum(resident.values()) - features,
        by_category_bytes=by_category,
        peak_at=peak_at(trace, fit.uncapped.peak_event),
        load_peak_bytes=load_peak(trace),
        verdict=fit.verdict,
        reason=fit.reason,
        failed_request_bytes=fit.failed_request_bytes,
    )


def idle_report(index: int, card: Card, outside: ByteBand) -> GpuReport:
    """Report a GPU that the plan gives no role."""
    return GpuReport(
        index=index, role="idle", peak_allocated_bytes=0, peak_reserved_bytes=0, outside=outside,
        capacity_bytes=card.usable_bytes, headroom_bytes=card.usable_bytes - outside.likely,
        resident_bytes={}, features_bytes=0, activation_peak_bytes=0, by_category_bytes={},
        peak_at=PeakAt(module="", op="", phase="idle", source=None), load_peak_bytes=0, verdict="fits",
        reason="no role is placed here",
    )  # fmt: skip


def sum_by_category(trace: AllocationTrace, alive: Iterable[int]) -> dict[str, int]:
    """Add up the blocks of these storages by category, largest first, in bytes."""
    sums: Counter[str] = Counter()
    for storage in alive:
        size = trace.storages[storage].bytes
        if size:
            sums[trace.storages[storage].category] += round_size(size)
    return dict(sums.most_common())


def peak_at(trace: AllocationTrace, event: int) -> PeakAt:
    """Name the moment of an event: module, op, phase and the innermost line."""
    if not trace.events:
        return PeakAt(module="", op="", phase="load", source=None)
    site = trace.storages[abs(trace.events[event]) - 1].site
    return PeakAt(module=site.module, op=site.op, phase=site.phase, source=source_line(site))


def source_line(site: Site) -> str | None:
    """Give `file:line` of a site's innermost frame."""
    return f"{site.stack[0].file}:{site.stack[0].line}" if site.stack else None


def load_peak(trace: AllocationTrace) -> int:
    """Give the most bytes alive at once while loading."""
    stop = next((phase.stop for phase in trace.phases if phase.name == "load"), 0)
    alive = peak = 0
    for number in trace.events[:stop]:
        size = trace.storages[abs(number) - 1].bytes
        alive += round_size(size) if number > 0 and size else -round_size(size) if size else 0
        peak = max(peak, alive)
    return peak
