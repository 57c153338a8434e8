"""Write reports as GitHub-flavoured Markdown."""

import re
from collections.abc import Iterable, Sequence

from dflash_doctor.records.finding import Finding, NotExamined
from dflash_doctor.records.report import MemoryReport, ProfileReport
from dflash_doctor.render.profile_lines import (
    MAX_ALLOCATIONS,
    allocation_line,
    allocation_place,
    profile_sentence,
)
from dflash_doctor.render.wording import (
    HALVED_INSTEAD,
    SEVERITY_HEADINGS,
    VERDICTS,
    budget_line,
    by_reason,
    by_severity,
    category_items,
    cell_text,
    fix_line,
    gib,
    group_gpus,
    halved_line,
    headline,
    index_ranges,
    peak_drops,
    peak_line,
    resident_line,
    run_line,
    short_path,
    verdict_sentence,
    what_line,
)
from dflash_doctor.units import format_bytes

GPU_HEADER = (
    "GPU", "role", "resident", "features", "activations", "allocated", "reserved", "outside", "capacity",
    "headroom", "verdict",
)  # fmt: skip

_MARKUP = re.compile(r"[*<|]|\\(?!`)|(?<!\w)_|_(?!\w)|(?<=\])[(\[:]")


def preflight_markdown(report: MemoryReport, before: MemoryReport | None = None) -> str:
    """Write a preflight; `before` is the report of the plan that this one mends."""
    parts = [f"# {_text(verdict_sentence(report))}"]
    if before is not None:
        parts.append(f"Before the fix: {_text(verdict_sentence(before))}")
    parts += [f"{run_line(report)}; plan `{report.plan_fingerprint}`", *_gpus(report)]
    parts += _findings(report.findings, report.not_examined)
    if report.avoided:
        parts += ["## Avoided by this plan", _bullets(report.avoided)]
    parts += ["## What fits", _bullets(_fitting(report))]
    if report.what_if:
        parts.append(_grid(report))
    if before is not None:
        parts += _before_after(before, report)
    if report.savings is not None:
        never_made = f"{format_bytes(report.savings.never_made_bytes)} of tensors never made, over all GPUs"
        parts += [
            "## Saved by the fix",
            _bullets([never_made, f"peaks lower by {', '.join(peak_drops(report))}"]),
        ]
    needs = [
        f"memory: {format_bytes(report.host.memory_bytes)}",
        f"disk for checkpoints: {format_bytes(report.host.checkpoint_disk_bytes)}",
        f"basis: {report.host.basis}",
    ]
    parts += ["## Host needs", _bullets(needs)]
    if report.assumptions:
        parts += ["## Assumptions", _bullets(report.assumptions)]
    return _document([*parts, "## Holds for", _versions(report.versions.items())])


def profile_markdown(report: ProfileReport) -> str:
    """Write a profile."""
    total = sum(report.by_category_bytes.values()) or 1
    categories = [
        (name, format_bytes(size), f"{100 * size / total:.1f} %")
        for name, size in category_items(report.by_category_bytes.items())
    ]
    place = f", `{short_path(report.peak_at.source)}`" if report.peak_at.source else ""
    engine = f"{report.engine} engine, {report.seconds:.1f} s"
    parts = [
        f"# {_text(profile_sentence(report))}",
        f"Resident {format_bytes(report.resident_bytes)}; {engine}.",
        f"Peak in {_text(peak_line(report.peak_at))}{place}.",
        "## Alive at the peak",
        _table(("category", "bytes", "share"), categories, "lrr"),
    ]
    if report.top_allocations:
        rows = []
        for allocation in report.top_allocations[:MAX_ALLOCATIONS]:
            words, source = allocation_place(allocation)
            path = f"`{short_path(source)}`" if source else ""
            rows.append((format_bytes(allocation.bytes), allocation_line(allocation), words, path))
        parts += ["## Largest allocations", _table(("bytes", "tensor", "where", "source"), rows, "rlll")]
    parts += _findings(report.findings, report.not_examined)
    if report.notes:
        parts += ["## Notes on this forecast", _bullets(report.notes)]
    return _document([*parts, "## Holds for", _versions(report.versions.items())])


def _gpus(report: MemoryReport) -> list[str]:
    groups = group_gpus(report.gpus)
    rows = []
    details = []
    for group in groups:
        gpu = group.report
        sizes = (
            sum(gpu.resident_bytes.values()), gpu.features_bytes, gpu.activation_peak_bytes,
            gpu.peak_allocated_bytes, gpu.peak_reserved_bytes,
        )  # fmt: skip
        outside = f"{gib(gpu.outside.low)}-{gib(gpu.outside.high)}"
        room = (gib(gpu.capacity_bytes), gib(gpu.headroom_bytes), VERDICTS[gpu.verdict])
        rows.append((index_ranges(group.indices), gpu.role, *map(gib, sizes), outside, *room))
        place = f", `{short_path(gpu.peak_at.source)}`" if gpu.peak_at.source else ""
        reason = f"{_text(gpu.reason)}; " if gpu.reason else ""
        details.append(
            f"- **{group.label} {gpu.role}**: {reason}peak in {_text(peak_line(gpu.peak_at))}{place}; "
            f"resident: {_text(resident_line(gpu))}; loading peak {format_bytes(gpu.load_peak_bytes)}; "
            f"outside PyTorch {format_bytes(gpu.outside.likely)} ({_text(gpu.outside.basis)})"
        )
    if not rows:
        return []
    note = "In GiB; activations, allocated and reserved at their peaks; outside PyTorch is a band."
    return ["## GPUs", _table(GPU_HEADER, rows, "llrrrrrrrrl"), note, "\n".join(details)]


def _findings(findings: Sequence[Finding], not_examined: Sequence[NotExamined]) -> list[str]:
    parts = [] if findings else ["## No findings"]
    for severity, group in by_severity(findings):
        parts.append(f"## {SEVERITY_HEADINGS[severity]}")
        for finding in group:
            lines = [f"### {_text(headline(finding))}", ""]
            lines += [f"- at `{short_path(finding.source)}`"] if finding.source else []
            lines += [f"- {_text(what)}"] if (what := what_line(finding)) else []
            lines += [f"- fix: {_text(fix_line(finding.fix))}"] if finding.fix else []
            parts.append("\n".join(lines).rstrip())
    if not_examined:
        parts += ["## Not examined", _bullets(by_reason(not_examined))]
    return parts


def _fitting(report: MemoryReport) -> list[str]:
    lines = [budget_line(report)]
    return lines if report.halved_budget is None else [*lines, halved_line(report.halved_budget)]


def _grid(report: MemoryReport) -> str:
    cells = {(cell.token_budget, cell.max_anchors): cell for cell in report.what_if}
    anchors = sorted({count for _, count in cells})
    rows = []
    for budget in sorted({budget for budget, _ in cells}):
        texts = [cell_text(cells[budget, count]) if (budget, count) in cells else "-" for count in anchors]
        rows.append((f"{budget:,}", *texts))
    return _table(("tokens", *(f"{count:,} anchors" for count in anchors)), rows, "r" * (len(anchors) + 1))


def _before_after(before: MemoryReport, after: MemoryReport) -> list[str]:
    earlier = {gpu.index: gpu for gpu in before.gpus}
    rows = []
    for group in group_gpus(after.gpus):
        new, old = group.report, earlier.get(group.indices[0])
        if old is not None:
            drop = old.peak_reserved_bytes - new.peak_reserved_bytes
            sizes = (old.peak_reserved_bytes, new.peak_reserved_bytes, drop, new.headroom_bytes)
            verdicts = f"{VERDICTS[old.verdict]} -> {VERDICTS[new.verdict]}"
            rows.append((index_ranges(group.indices), new.role, *map(gib, sizes), verdicts))
    header = ("GPU", "role", "reserved before", "after", "drop", "headroom after", "verdict")
    parts = ["## Before and after the fix", _table(header, rows, "llrrrrl")]
    if before.halved_budget is not None:
        parts.append(halved_line(before.halved_budget, HALVED_INSTEAD))
    return parts


def _table(header: Sequence[str], rows: Iterable[Sequence[str]], align: str) -> str:
    """Write a table; `align` has an l or r for each column."""
    rule = ["---:" if side == "r" else "---" for side in align]
    cells = [header, rule, *([_text(cell) for cell in row] for row in rows)]
    return "\n".join(f"| {' | '.join(row)} |" for row in cells)


def _text(text: str) -> str:
    """Escape what Markdown would take for markup, outside of code; underscores inside words stay."""
    parts = text.replace("\n", " ").split("`")
    if len(parts) % 2 == 0:
        parts = ["\\`".join(parts)]
    for i, part in enumerate(parts):
        parts[i] = part.replace("|", "\\|") if i % 2 else _MARKUP.sub(r"\\\g<0>", part)
    return "`".join(parts)


def _bullets(items: Iterable[str]) -> str:
    return "\n".join(f"- {_text(item)}" for item in items)


def _versions(versions: Iterable[tuple[str, str]]) -> str:
    return ", ".join(f"{name} {version}" for name, version in versions) or "unknown versions"


def _document(parts: Sequence[str]) -> str:
    return "\n\n".join(part for part in parts if part) + "\n"
