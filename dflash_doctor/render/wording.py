"""Say a report's facts in words: verdicts, groups of GPUs, headlines, places, sizes."""

import re
from collections.abc import Iterable
from dataclasses import dataclass

from dflash_doctor.records.finding import Finding, Fix, NotExamined, Severity
from dflash_doctor.records.report import GpuReport, MemoryReport, PeakAt, Verdict, WhatIf
from dflash_doctor.units import format_bytes

VERDICTS: dict[Verdict, str] = {
    "fits": "fits",
    "tight": "tight",
    "wont-fit": "won't fit",
    "unknown": "unknown",
}
SEVERITIES: tuple[Severity, ...] = ("error", "warning", "info")
SEVERITY_HEADINGS: dict[Severity, str] = {"error": "Errors", "warning": "Warnings", "info": "Notes"}
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

HALVED_INSTEAD = "Without the fix, with the token budget halved to"
_SHAPE = re.compile(r" (\[\d+(?:, \d+)*\])")


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
        return f"{word}: whether {name} fits could not be determined" + (f": {reason}" if reason else "")
    if report.verdict == "wont-fit":
        failing = [g for g in groups if g.report.verdict == "wont-fit"]
        count = sum(len(g.indices) for g in failing)
        total = len(report.gpus)
        where = f"all {total} GPUs" if count == total > 1 else f"{count} of {plural(total, 'GPU')}"
        short = ", ".join(
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
    return f"{word}: {name} with {spare}" + (", the fullest" if len(groups) > 1 else "")


def run_line(report: MemoryReport) -> str:
    """Say what was forecast, and by what."""
    parts = []
    if report.token_budget is not None:
        parts.append(f"{report.token_budget:,} tokens")
    if report.max_anchors is not None:
        parts.append(f"{report.max_anchors:,} anchors")
    return ", ".join([*parts, f"{report.engine} engine", f"{report.seconds:.1f} s"])


def headline(finding: Finding) -> str:
    """Give a finding's message with GPUs, code and any doubt; the shape moves to the line below."""
    message = _SHAPE.sub("", finding.message, count=1)
    where = f" on {gpus_text(finding.gpus)}" if finding.gpus else ""
    doubt = "" if finding.confidence == "proved" else f", {finding.confidence}"
    return f"{message}{where} ({finding.code}{doubt})"


def what_line(finding: Finding) -> str:
    """Say what a finding is about: shape, module, op, and that it is proved."""
    shape = _SHAPE.search(finding.message)
    proof = "proved by the trace" if finding.confidence == "proved" and finding.op else None
    parts = [shape.group(1) if shape else None, finding.module, finding.op, proof]
    return ", ".join(part for part in parts if part)


def fix_line(fix: Fix) -> str:
    """Give a fix with how safe it is and the setting that makes it."""
    safety = fix.safety.replace("-", " ")
    return f"{fix.text} ({safety})" + (f"; set {fix.setting}" if fix.setting else "")


def by_severity(findings: Iterable[Finding]) -> list[tuple[Severity, list[Finding]]]:
    """Group findings, most severe first, in their order."""
    found = list(findings)
    groups = [(severity, [f for f in found if f.severity == severity]) for severity in SEVERITIES]
    return [(severity, group) for severity, group in groups if group]


def by_reason(not_examined: Iterable[NotExamined]) -> list[str]:
    """Give one line for all rules that could not be examined for one reason."""
    reasons: dict[str, list[str]] = {}
    for item in not_examined:
        reasons.setdefault(item.reason, []).append(item.code)
    return [f"{', '.join(codes)}: {reason}" for reason, codes in reasons.items()]


def short_path(source: str, width: int | None = None) -> str:
    """Leave out what a path shares with every installed package, and its beginning where it is too long."""
    path = re.split(r"(?:site|dist)-packages/", source.replace("\\", "/"))[-1]
    if width is None or len(path) <= width:
        return path
    parts = path.split("/")
    while len(parts) > 1 and len(path) > width:
        parts.pop(0)
        path = ".../" + "/".join(parts)
    return path


def peak_line(peak: PeakAt) -> str:
    """Say where and when a peak is, without its source line."""
    return ", ".join(part for part in (peak.phase, peak.module, peak.op) if part)


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


def peak_drops(report: MemoryReport) -> list[str]:
    """Give the drop of each GPU's peak, equal ones together."""
    if report.savings is None:
        return []
    drops: dict[int, list[int]] = {}
    for gpu, drop in zip(report.gpus, report.savings.peak_drop_bytes, strict=False):
        drops.setdefault(drop, []).append(gpu.index)
    return [f"{format_bytes(drop)} on {gpus_text(indices)}" for drop, indices in drops.items()]


def budget_line(report: MemoryReport) -> str:
    """Say which token budget is the largest that fits, or why that is not known."""
    reason = report.largest_token_budget_reason
    if report.largest_token_budget is None:
        return f"Largest token budget that fits: unknown{f' ({reason})' if reason else ''}"
    return (
        f"Largest token budget that fits: {report.largest_token_budget:,}{f' ({reason})' if reason else ''}"
    )


def halved_line(cell: WhatIf, lead: str = "Or halve the token budget to") -> str:
    """Say what half the token budget would do."""
    return f"{lead} {cell.token_budget:,}: {cell_text(cell)}"


def cell_text(cell: WhatIf) -> str:
    """Give a what-if verdict with the headroom of the fullest GPU."""
    spare = cell.worst_headroom_bytes
    if cell.verdict == "unknown":
        return "unknown"
    if cell.verdict == "wont-fit":
        return f"won't fit, over by {format_bytes(-spare)}" if spare < 0 else "won't fit"
    return f"{VERDICTS[cell.verdict]}, {format_bytes(max(spare, 0))} to spare"
