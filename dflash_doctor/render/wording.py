"""Say a report's facts in words: verdicts, groups of GPUs, places, sizes."""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from dflash_doctor.records.reads import base_name
from dflash_doctor.records.report import GpuReport, MemoryReport, PeakAt, Verdict, WhatIf
from dflash_doctor.records.source import short_source
from dflash_doctor.units import format_bytes

VERDICTS: dict[Verdict, str] = {
    "fits": "fits",
    "tight": "tight",
    "wont-fit": "won't fit",
    "unknown": "unknown",
}
CATEGORIES = {
    "weights": "weights",
    "buffers": "buffers",
    "tables": "embedding and head",
    "master_weights": "master weights",
    "gradients": "gradients",
    "optimizer_state": "optimizer state",
    "inputs": "inputs",
    "features": "features",
    "activations": "activations",
    "temporaries": "temporaries",
    "workspace": "workspace",
}
"""Categories of memory in the order in which they are shown, with their names."""

_ATEN = re.compile(r"\baten\.(\w+)\.\w+")
NOT_SEARCHED = "not searched"
"""How the reason begins where the largest budget was not looked for."""


@dataclass(frozen=True, slots=True)
class GpuGroup:
    """GPUs of one role with equal forecasts, told once."""

    report: GpuReport
    indices: tuple[int, ...]

    @property
    def label(self) -> str:
        """Name the GPUs, `gpu0-6`."""
        return gpus_text(self.indices)


def group_gpus(reports: Iterable[GpuReport]) -> tuple[GpuGroup, ...]:
    """Collapse GPUs of one role that have the same numbers."""
    groups: dict[tuple[object, ...], list[GpuReport]] = {}
    for report in reports:
        key = (
            report.role, report.verdict, report.reason, report.capacity_bytes, report.headroom_bytes,
            report.outside, report.peak_allocated_bytes, report.peak_reserved_bytes, report.features_bytes,
            report.activation_peak_bytes, report.peak_at, tuple(report.resident_bytes.items()),
        )  # fmt: skip
        groups.setdefault(key, []).append(report)
    return tuple(GpuGroup(group[0], tuple(r.index for r in group)) for group in groups.values())


def index_ranges(indices: Iterable[int]) -> str:
    """Write indices as ranges, `0-6,9`."""
    runs: list[list[int]] = []
    for index in sorted(indices):
        if runs and index == runs[-1][1] + 1:
            runs[-1][1] = index
        else:
            runs.append([index, index])
    return ",".join(f"{first}" if first == last else f"{first}-{last}" for first, last in runs)


def gpus_text(indices: Iterable[int]) -> str:
    """Name GPUs, `gpu0-6`."""
    return f"gpu{index_ranges(indices)}"


def gib(num_bytes: int) -> str:
    """Write bytes in GiB without the unit, for a column that names it."""
    return f"{num_bytes / 2**30:.2f}"


def plural(count: int, noun: str) -> str:
    """Count things: `1 error`, `2 errors`."""
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


def verdict_sentence(report: MemoryReport) -> str:
    """Say in one sentence whether the run fits, and by how much."""
    groups = group_gpus(report.gpus)
    name, word = report.plan_name, VERDICTS[report.verdict].upper()
    if report.verdict == "unknown":
        reason = next(
            (g.report.reason for g in groups if g.report.verdict == "unknown" and g.report.reason), ""
        )
        lead = f"{word}: whether {name} fits could not be determined"
        return f"{lead}: {plain_ops(reason)}" if reason else lead
    if report.verdict == "wont-fit":
        failing = [g for g in groups if g.report.verdict == "wont-fit"]
        count = sum(len(g.indices) for g in failing)
        total = len(report.gpus)
        where = f"all {total} GPUs" if count == total > 1 else f"{count} of {plural(total, 'GPU')}"
        short = " and ".join(
            f"{format_bytes(-g.report.headroom_bytes)} on {g.label}"
            for g in failing
            if g.report.headroom_bytes < 0
        )
        return f"{word}: {name} runs out of memory on {where}" + (f", short by {short}" if short else "")
    fullest = min(groups, key=lambda g: g.report.headroom_bytes, default=None)
    if fullest is None:
        return f"{word}: {name}"
    spare = f"{format_bytes(max(fullest.report.headroom_bytes, 0))} to spare on {fullest.label}"
    if report.verdict == "tight":
        return f"{word}: {name} fits, but with less than the margin: {spare}"
    return f"{word}: {name} has {spare}" + (", the fullest" if len(groups) > 1 else "")


def mending_line(report: MemoryReport, before: MemoryReport | None) -> str:
    """Say how to mend a plan that does not fit, or what the fix had to give up; empty where neither is so."""
    if before is not None:
        budget, asked = report.token_budget, before.token_budget
        if budget is None or asked is None or budget == asked:
            return ""
        return f"The fix lowers the token budget from {asked:,} to {budget:,}."
    if report.verdict != "wont-fit" or any(map(_state_exceeds, report.gpus)):
        return ""
    return "To mend it: add --fix to see the tuned plan; --fix-to run.toml writes it."


def _state_exceeds(gpu: GpuReport) -> bool:
    """Say whether what is resident alone is more than the card holds: no tuning mends that."""
    return sum(gpu.resident_bytes.values()) + gpu.outside.likely > gpu.capacity_bytes


def run_line(report: MemoryReport) -> str:
    """Say what was forecast, and by what."""
    parts = [] if report.model_name is None else [report.model_name]
    if report.token_budget is not None:
        parts.append(f"{report.token_budget:,} tokens")
    if report.max_anchors is not None:
        parts.append(f"{report.max_anchors:,} anchors")
    return ", ".join([*parts, f"{report.engine} engine", f"{report.seconds:.1f} s"])


def short_path(source: str, width: int | None = None) -> str:
    """Name a source line as short as it is clear, without its beginning where it is still too long."""
    path = short_source(source)
    if width is None or len(path) <= width:
        return path
    parts = path.split("/")
    while len(parts) > 1 and len(path) > width:
        parts.pop(0)
        path = ".../" + "/".join(parts)
    return path


def plain_ops(text: str) -> str:
    """Leave namespace and overload out of the ops that a text names: `aten.mm.default` is `mm`."""
    return _ATEN.sub("\\1", text)


def place_words(phase: str, module: str, op: str, *, quote: str = "") -> str:
    """Say in which phase, module and op something is; names of code go in quotes."""
    names = (module, "" if op == phase else base_name(op))
    return ", ".join(part for part in (phase, *(f"{quote}{n}{quote}" for n in names if n)) if part)


def peak_line(peak: PeakAt, *, quote: str = "") -> str:
    """Say where and when a peak is, without its source line."""
    return place_words(peak.phase, peak.module, peak.op, quote=quote)


def category_items(sizes: Iterable[tuple[str, int]]) -> list[tuple[str, int]]:
    """Order categories as they are shown, named in words, without those of no bytes."""
    order = list(CATEGORIES)
    known = [(name, size) for name, size in sizes if size]
    known.sort(key=lambda item: order.index(item[0]) if item[0] in CATEGORIES else len(order))
    return [(CATEGORIES.get(name, name.replace("_", " ")), size) for name, size in known]


def resident_line(report: GpuReport) -> str:
    """Give the parts of what is resident."""
    parts = category_items(report.resident_bytes.items())
    return ", ".join(f"{name} {format_bytes(size)}" for name, size in parts)


def budget_line(report: MemoryReport) -> str:
    """Say which token budget is the largest that fits, or why that is not known."""
    lead, reason = "Largest token budget that fits", report.largest_token_budget_reason
    if report.largest_token_budget is not None:
        return f"{lead}: {report.largest_token_budget:,}" + (f" ({reason})" if reason else "")
    if not reason or reason.startswith(NOT_SEARCHED):
        return f"{lead}: {reason or 'unknown'}"
    return f"{lead}: none found, {reason}"


def halved_line(cell: WhatIf, verdict: Verdict) -> str:
    """Say what half the token budget would do for a plan of this verdict."""
    lead = "Or halve the token budget to" if verdict == "wont-fit" else "With half the token budget,"
    return f"{lead} {cell.token_budget:,}: {cell_text(cell)}"


def halved_instead_line(cell: WhatIf) -> str:
    """Say what half the token budget would do in the place of a fix."""
    return f"Without the fix, with the token budget halved to {cell.token_budget:,}: {cell_text(cell)}"


def cell_text(cell: WhatIf) -> str:
    """Give a what-if verdict with the headroom of the fullest GPU."""
    spare = cell.worst_headroom_bytes
    if cell.verdict == "unknown":
        return "unknown"
    if cell.verdict == "wont-fit":
        return f"won't fit, over by {format_bytes(-spare)}" if spare < 0 else "won't fit"
    return f"{VERDICTS[cell.verdict]}, {format_bytes(max(spare, 0))} to spare"


def saving_items(report: MemoryReport) -> list[str]:
    """Say what a fix saves: bytes of tensors never made, and the drop of the allocated peaks."""
    if report.savings is None:
        return []
    never_made = f"{format_bytes(report.savings.never_made_bytes)} of tensors never made, over all GPUs"
    return [never_made, f"allocated peaks lower by {' and '.join(_peak_drops(report))}"]


def _peak_drops(report: MemoryReport) -> list[str]:
    """Give the drop of each GPU's peak, equal ones together."""
    assert report.savings is not None
    drops: dict[int, list[int]] = {}
    for gpu, drop in zip(report.gpus, report.savings.peak_drop_bytes, strict=False):
        drops.setdefault(drop, []).append(gpu.index)
    return [f"{format_bytes(drop)} on {gpus_text(indices)}" for drop, indices in drops.items()]


def band_text(gpu: GpuReport) -> str:
    """Give the band of what lies outside PyTorch, in GiB without the unit."""
    low, high = gib(gpu.outside.low), gib(gpu.outside.high)
    return low if low == high else f"{low}-{high}"


def capacity_line(gpu: GpuReport) -> str:
    """Say what a GPU can hold, and what of that lies outside PyTorch."""
    outside = f"{gib(gpu.outside.likely)} GiB outside PyTorch"
    return f"{format_bytes(gpu.capacity_bytes)}, {outside} (band {band_text(gpu)}; {gpu.outside.basis})"


def versions_text(versions: Mapping[str, str]) -> str:
    """Name the versions that a report holds for."""
    return ", ".join(f"{name} {version}" for name, version in versions.items()) or "unknown versions"
