"""Write a preflight as lines of text: the verdict first, then why, then what to do."""

from rich.text import Text

from dflash_doctor.records.report import MemoryReport, WhatIf
from dflash_doctor.render.finding_lines import earlier_finding_lines, finding_lines
from dflash_doctor.render.finding_wording import NOTHING_FOUND, NOTHING_LEFT
from dflash_doctor.render.gpu_lines import STYLES, gpu_lines, peak_lines
from dflash_doctor.render.layout import bullets, heading, paragraph, table
from dflash_doctor.render.wording import (
    VERDICTS,
    budget_line,
    cell_text,
    gib,
    group_gpus,
    halved_instead_line,
    halved_line,
    index_ranges,
    mending_line,
    run_line,
    saving_items,
    verdict_sentence,
    versions_text,
)
from dflash_doctor.units import format_bytes


def preflight_lines(report: MemoryReport, width: int, before: MemoryReport | None = None) -> list[Text]:
    """Write the whole report for a terminal of this width; `before` is the plan that it mends."""
    groups = group_gpus(report.gpus)
    lines = _verdict_lines(report, before, width)
    if before is not None:
        lines += earlier_finding_lines(before.findings, width)
        lines += heading(f"After the fix: {report.plan_name}")
    gpus = gpu_lines(groups, width)
    lines += gpus if before is None else gpus[1:]
    none = NOTHING_FOUND if before is None else NOTHING_LEFT
    lines += finding_lines(report.findings, report.not_examined, width, none=none)
    if before is not None:
        lines += _before_after_lines(before, report, width)
    if savings := saving_items(report):
        lines += heading("Saved by the fix")
        lines += bullets(savings, width)
    if report.avoided:
        lines += heading("Avoided by this plan")
        lines += bullets(report.avoided, width)
    lines += _budget_lines(report, width)
    lines += peak_lines(groups, width)
    return lines + _ground_lines(report, width)


def _verdict_lines(report: MemoryReport, before: MemoryReport | None, width: int) -> list[Text]:
    lines = paragraph(verdict_sentence(report), width, hang="  ", style=STYLES[report.verdict])
    if before is not None:
        lines += paragraph(f"Before the fix: {verdict_sentence(before)}", width, hang="  ")
    if mending := mending_line(report, before):
        lines += paragraph(mending, width, hang="  ")
    return lines + paragraph(run_line(report), width, style="dim")


def _budget_lines(report: MemoryReport, width: int) -> list[Text]:
    lines = heading("What fits")
    lines += paragraph(budget_line(report), width, hang="  ")
    if report.halved_budget is not None:
        lines += paragraph(halved_line(report.halved_budget, report.verdict), width, hang="  ")
    if report.what_if:
        lines += [Text(""), *_grid_lines(report, width)]
    return lines


def _grid_lines(report: MemoryReport, width: int) -> list[Text]:
    """Write the grid of token budget by anchors, or one line a cell where it is too wide."""
    cells = {(cell.token_budget, cell.max_anchors): cell for cell in report.what_if}
    budgets = sorted({budget for budget, _ in cells})
    anchors = sorted({count for _, count in cells})
    here = (report.token_budget, report.max_anchors)
    rows = [["tokens", *(f"{count:,} anchors" for count in anchors)]]
    for budget in budgets:
        row = [_grid_cell(cells.get((budget, count)), (budget, count) == here) for count in anchors]
        rows.append([f"{budget:,}", *row])
    aligned = table(rows, [True] * len(rows[0]), width)
    if aligned is None:
        return [
            line
            for (budget, count), cell in sorted(cells.items())
            for line in paragraph(
                f"{budget:,} tokens, {count:,} anchors: {cell_text(cell)}"
                + (" (this plan)" if (budget, count) == here else ""),
                width, hang="  ",
            )
        ]  # fmt: skip
    note = "Headroom of the fullest GPU in GiB" + ("; * is this plan." if here in cells else ".")
    lines = [Text(aligned[0], style="bold"), *(Text(line) for line in aligned[1:])]
    return lines + paragraph(note, width, style="dim")


def _grid_cell(cell: WhatIf | None, is_here: bool) -> str:
    if cell is None:
        return "-"
    spare = "" if cell.verdict == "unknown" else f" {gib(cell.worst_headroom_bytes)}"
    return f"{'* ' if is_here else ''}{VERDICTS[cell.verdict]}{spare}"


def _before_after_lines(before: MemoryReport, after: MemoryReport, width: int) -> list[Text]:
    """Set the reserved peaks, headroom and verdicts of two reports side by side."""
    lines = heading("Before and after the fix")
    earlier = {gpu.index: gpu for gpu in before.gpus}
    rows = [("GPU", "role", "reserved", "less by", "headroom", "verdict")]
    for group in group_gpus(after.gpus):
        old, new = earlier.get(group.indices[0]), group.report
        if old is None:
            continue
        rows.append(
            (
                index_ranges(group.indices),
                new.role,
                f"{gib(old.peak_reserved_bytes)} -> {gib(new.peak_reserved_bytes)}",
                gib(old.peak_reserved_bytes - new.peak_reserved_bytes),
                f"{gib(old.headroom_bytes)} -> {gib(new.headroom_bytes)}",
                f"{VERDICTS[old.verdict]} -> {VERDICTS[new.verdict]}",
            )
        )
    aligned = table(rows, [False, False, *[True] * 3, False], width)
    if aligned is not None:
        lines += [Text(aligned[0], style="bold"), *(Text(line) for line in aligned[1:])]
        lines += paragraph("In GiB; reserved at its peak.", width, style="dim")
    else:
        for gpus, role, reserved, drop, _, verdicts in rows[1:]:
            text = f"gpu{gpus} {role}: {verdicts}, reserved {reserved} GiB ({drop} GiB less)"
            lines += paragraph(text, width, hang="  ")
    if before.halved_budget is not None:
        lines += paragraph(halved_instead_line(before.halved_budget), width, hang="  ")
    return lines


def _ground_lines(report: MemoryReport, width: int) -> list[Text]:
    """Say what the machine needs and what the forecast rests on."""
    host = report.host
    needs = (
        f"{format_bytes(host.memory_bytes)} of memory, "
        f"{format_bytes(host.checkpoint_disk_bytes)} of disk for checkpoints ({host.basis})"
    )
    lines = heading("Host needs")
    lines += paragraph(needs, width)
    if report.assumptions:
        lines += heading("Assumptions")
        lines += bullets(report.assumptions, width)
    lines += heading("Holds for")
    lines += paragraph(versions_text(report.versions), width)
    return lines + paragraph(f"plan {report.plan_fingerprint}", width, style="dim")
