"""Write reports as GitHub-flavoured Markdown."""

import re
from collections.abc import Iterable, Sequence

from dflash_doctor.records.finding import Finding, NotExamined
from dflash_doctor.records.report import MemoryReport, ProfileReport
from dflash_doctor.render.finding_wording import (
    FOUND_BEFORE,
    NOTHING_FOUND,
    NOTHING_LEFT,
    SEVERITY_HEADINGS,
    ToldFinding,
    by_reason,
    by_severity,
    fix_line,
    headline,
    what_line,
)
from dflash_doctor.render.gpu_table import ALIGN, HEADER, WIDE_NOTE, gpu_row
from dflash_doctor.render.profile_lines import allocation_rows, profile_sentence, settings_line
from dflash_doctor.render.wording import (
    VERDICTS,
    GpuGroup,
    budget_line,
    capacity_line,
    category_items,
    cell_text,
    gib,
    group_gpus,
    halved_instead_line,
    halved_line,
    index_ranges,
    mending_line,
    peak_line,
    plain_ops,
    resident_line,
    run_line,
    saving_items,
    short_path,
    verdict_sentence,
    versions_text,
)
from dflash_doctor.units import format_bytes

_MARKUP = re.compile(r"[*<|]|\\(?!`)|(?<!\w)_|_(?!\w)|(?<=\])[(\[:]")


def preflight_markdown(report: MemoryReport, before: MemoryReport | None = None) -> str:
    """Write a preflight; `before` is the report of the plan that this one mends."""
    parts = [f"# {_text(verdict_sentence(report))}"]
    if before is not None:
        parts.append(f"Before the fix: {_text(verdict_sentence(before))}")
    parts += [_text(mending_line(report, before))]
    parts += [f"{run_line(report)}; plan `{report.plan_fingerprint}`"]
    if before is not None and before.findings:
        parts += [f"## {FOUND_BEFORE}", *_by_severity(before.findings, level=3)]
    parts += _gpus(report, "GPUs" if before is None else "GPUs after the fix")
    none = NOTHING_FOUND if before is None else NOTHING_LEFT
    parts += _findings(report.findings, report.not_examined, none)
    if before is not None:
        parts += _before_after(before, report)
    if savings := saving_items(report):
        parts += ["## Saved by the fix", _bullets(savings)]
    if report.avoided:
        parts += ["## Avoided by this plan", _bullets(report.avoided)]
    parts += ["## What fits", _bullets(_fitting(report))]
    if report.what_if:
        parts.append(_grid(report))
    needs = [
        f"memory: {format_bytes(report.host.memory_bytes)}",
        f"disk for checkpoints: {format_bytes(report.host.checkpoint_disk_bytes)}",
        f"basis: {report.host.basis}",
    ]
    parts += ["## Host needs", _bullets(needs)]
    if report.assumptions:
        parts += ["## Assumptions", _bullets(report.assumptions)]
    return _document([*parts, "## Holds for", versions_text(report.versions)])


def profile_markdown(report: ProfileReport) -> str:
    """Write a profile."""
    total = sum(report.by_category_bytes.values()) or 1
    categories = [
        (name, format_bytes(size), f"{100 * size / total:.1f} %")
        for name, size in category_items(report.by_category_bytes.items())
    ]
    engine = f"{report.engine} engine, {report.seconds:.1f} s"
    parts = [
        f"# {_text(profile_sentence(report))}",
        *([f"{_text(settings_line(report))}."] if report.settings else []),
        f"Resident {format_bytes(report.resident_bytes)}; {engine}.",
        f"Peak in {_text(peak_line(report.peak_at, quote='`'))}{_at(report.peak_at.source)}.",
        "## Alive at the peak",
        _table(("category", "bytes", "share"), categories, "lrr"),
    ]
    if report.top_allocations:
        rows = [
            (size, tensor, where, f"`{short_path(source)}`" if source else "")
            for size, tensor, where, source in allocation_rows(report.top_allocations, quote="`")
        ]
        table = _table(("bytes", "tensor", "where", "source"), rows, "rlll")
        parts += ["## Largest allocations at the peak", table]
    parts += _findings(report.findings, report.not_examined, NOTHING_FOUND)
    if report.notes:
        parts += ["## Notes on this forecast", _bullets(report.notes)]
    return _document([*parts, "## Holds for", versions_text(report.versions)])


def _gpus(report: MemoryReport, title: str) -> list[str]:
    groups = group_gpus(report.gpus)
    if not groups:
        return []
    table = _table(HEADER, map(gpu_row, groups), ALIGN)
    return [f"## {title}", table, WIDE_NOTE, "\n".join(map(_gpu_details, groups))]


def _gpu_details(group: GpuGroup) -> str:
    """Say below the table why a group would not fit, where its peak is and what it holds."""
    gpu = group.report
    lines = [f"- **{group.label} {gpu.role}**" + (f": {_text(plain_ops(gpu.reason))}" if gpu.reason else "")]
    if gpu.peak_allocated_bytes:
        lines += [
            f"  - peak in {_text(peak_line(gpu.peak_at, quote='`'))}{_at(gpu.peak_at.source)}",
            f"  - resident: {_text(resident_line(gpu))}",
            f"  - loading: peak {format_bytes(gpu.load_peak_bytes)}",
            f"  - capacity: {_text(capacity_line(gpu))}",
        ]
    return "\n".join(lines)


def _at(source: str | None) -> str:
    return f", at `{short_path(source)}`" if source else ""


def _findings(findings: Sequence[Finding], not_examined: Sequence[NotExamined], none: str) -> list[str]:
    parts = _by_severity(findings, level=2) if findings else [f"## {none}"]
    return parts + (["## Not examined", _bullets(by_reason(not_examined))] if not_examined else [])


def _by_severity(findings: Sequence[Finding], *, level: int) -> list[str]:
    parts = []
    for severity, group in by_severity(findings):
        parts.append(f"{'#' * level} {SEVERITY_HEADINGS[severity]} ({len(group)})")
        parts += [_finding(told, level + 1) for told in group]
    return parts


def _finding(told: ToldFinding, level: int) -> str:
    finding = told.finding
    lines = [f"{'#' * level} {_text(headline(finding))}", ""]
    lines += [f"- at `{place}`"] if (place := told.place()) else []
    lines += [f"- what: {_text(what)}"] if (what := what_line(finding, quote="`")) else []
    lines += [f"- fix: {_text(fix_line(finding.fix, quote='`'))}"] if finding.fix else []
    return "\n".join(lines).rstrip()


def _fitting(report: MemoryReport) -> list[str]:
    halved = report.halved_budget
    return [budget_line(report), *([] if halved is None else [halved_line(halved, report.verdict)])]


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
            headroom = (old.headroom_bytes, new.headroom_bytes)
            sizes = (old.peak_reserved_bytes, new.peak_reserved_bytes, drop, *headroom)
            verdicts = f"{VERDICTS[old.verdict]} -> {VERDICTS[new.verdict]}"
            rows.append((index_ranges(group.indices), new.role, *map(gib, sizes), verdicts))
    header = (
        "GPU", "role", "reserved before", "reserved after", "less by", "headroom before", "headroom after",
        "verdict",
    )  # fmt: skip
    parts = ["## Before and after the fix", _table(header, rows, "llrrrrrl"), "In GiB; reserved at its peak."]
    if before.halved_budget is not None:
        parts.append(halved_instead_line(before.halved_budget))
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


def _document(parts: Sequence[str]) -> str:
    return "\n\n".join(part for part in parts if part) + "\n"
