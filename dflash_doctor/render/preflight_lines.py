"""Write a preflight as lines of text: the verdict first, then why, then what to do."""

from collections.abc import Iterable

from rich.text import Text

from dflash_doctor.records.report import GpuReport, MemoryReport, Verdict, WhatIf
from dflash_doctor.render.finding_lines import finding_lines
from dflash_doctor.render.layout import bullets, heading, labelled, paragraph, table
from dflash_doctor.render.wording import (
    HALVED_INSTEAD,
    VERDICTS,
    GpuGroup,
    budget_line,
    cell_text,
    gib,
    group_gpus,
    halved_line,
    index_ranges,
    peak_drops,
    peak_line,
    resident_line,
    run_line,
    short_path,
    verdict_sentence,
)
from dflash_doctor.units import format_bytes

STYLES: dict[Verdict, str] = {
    "fits": "bold green",
    "tight": "bold yellow",
    "wont-fit": "bold red",
    "unknown": "bold magenta",
}
HEADER = (
    "GPU", "role", "resident", "features", "activations", "allocated", "reserved", "outside", "capacity",
    "headroom", "verdict",
)  # fmt: skip
RIGHT = (False, False, True, True, True, True, True, True, True, True, False)
LABEL_WIDTH = 11


def preflight_lines(report: MemoryReport, width: int, before: MemoryReport | None = None) -> list[Text]:
    """Write the whole report for a terminal of this width."""
    lines = paragraph(verdict_sentence(report), width, hang="  ", style=STYLES[report.verdict])
    if before is not None:
        lines += paragraph(f"Before the fix: {verdict_sentence(before)}", width, hang="  ")
    lines += paragraph(run_line(report), width, style="dim")
    groups = group_gpus(report.gpus)
    lines += _gpu_lines(groups, width)
    lines += finding_lines(report.findings, report.not_examined, width)
    if report.avoided:
        lines += heading("Avoided by this plan")
        lines += bullets(report.avoided, width)
    lines += _budget_lines(report, width)
    if before is not None:
        lines += _before_after_lines(before, report, width)
    lines += _saving_lines(report, width)
    lines += _peak_lines(groups, width)
    return lines + _ground_lines(report, width)


def _gpu_lines(groups: tuple[GpuGroup, ...], width: int) -> list[Text]:
    if not groups:
        return []
    rows = [HEADER, *(_gpu_row(group) for group in groups)]
    aligned = table(rows, RIGHT, width)
    if aligned is None:
        return [line for group in groups for line in _stacked(group, width)]
    lines = [Text(""), Text(aligned[0], style="bold")]
    for group, line in zip(groups, aligned[1:], strict=True):
        lines.append(_with_verdict(line, group.report.verdict))
    note = "in GiB; activations, allocated and reserved at their peaks; outside PyTorch is a band"
    lines += paragraph(note, width, style="dim")
    for group in groups:
        if group.report.reason:
            lines += paragraph(f"{group.label}: {group.report.reason}", width, hang="  ")
    return lines


def _gpu_row(group: GpuGroup) -> tuple[str, ...]:
    gpu = group.report
    return (
        index_ranges(group.indices),
        gpu.role,
        gib(sum(gpu.resident_bytes.values())),
        gib(gpu.features_bytes),
        gib(gpu.activation_peak_bytes),
        gib(gpu.peak_allocated_bytes),
        gib(gpu.peak_reserved_bytes),
        _band(gpu),
        gib(gpu.capacity_bytes),
        gib(gpu.headroom_bytes),
        VERDICTS[gpu.verdict],
    )


def _band(gpu: GpuReport) -> str:
    low, high = gib(gpu.outside.low), gib(gpu.outside.high)
    return low if low == high else f"{low}-{high}"


def _with_verdict(line: str, verdict: Verdict) -> Text:
    text = Text(line)
    text.stylize(STYLES[verdict], len(line) - len(VERDICTS[verdict]))
    return text


def _stacked(group: GpuGroup, width: int) -> list[Text]:
    """Write a group's numbers below each other, for a terminal too narrow for the table."""
    gpu = group.report
    head = f"{group.label} {gpu.role}: {VERDICTS[gpu.verdict]}"
    lines = [Text(""), _with_verdict(head, gpu.verdict)]
    numbers = [
        ("resident", sum(gpu.resident_bytes.values()), ""),
        ("features", gpu.features_bytes, ""),
        ("activations", gpu.activation_peak_bytes, " at their peak"),
        ("allocated", gpu.peak_allocated_bytes, " peak"),
        ("reserved", gpu.peak_reserved_bytes, " peak"),
        ("outside", gpu.outside.likely, f" ({_band(gpu)})"),
        ("capacity", gpu.capacity_bytes, ""),
        ("headroom", gpu.headroom_bytes, ""),
    ]
    for label, size, remark in numbers:
        lines += labelled(label, f"{gib(size):>8} GiB{remark}", width, column=LABEL_WIDTH)
    return lines + (paragraph(gpu.reason, width, indent="  ") if gpu.reason else [])


def _peak_lines(groups: tuple[GpuGroup, ...], width: int) -> list[Text]:
    """Say for each group where its peak is and what it holds all the time."""
    lines = heading("Where the peaks are") if groups else []
    for group in groups:
        gpu = group.report
        lines.append(Text(f"{group.label} {gpu.role}"))
        place = short_path(gpu.peak_at.source, width - LABEL_WIDTH - 3) if gpu.peak_at.source else ""
        outside = f"{format_bytes(gpu.outside.likely)} ({gpu.outside.basis})"
        for label, text in (
            ("peak", peak_line(gpu.peak_at)),
            ("", place),
            ("resident", resident_line(gpu)),
            ("loading", f"peak {format_bytes(gpu.load_peak_bytes)}"),
            ("outside", outside),
        ):
            lines += labelled(label, text, width, column=LABEL_WIDTH) if text else []
    return lines


def _budget_lines(report: MemoryReport, width: int) -> list[Text]:
    lines = heading("What fits")
    lines += paragraph(budget_line(report), width, hang="  ")
    if report.halved_budget is not None:
        lines += paragraph(halved_line(report.halved_budget), width, hang="  ")
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
    note = "headroom of the fullest GPU in GiB" + ("; * is this plan" if here in cells else "")
    lines = [Text(aligned[0], style="bold"), *(Text(line) for line in aligned[1:])]
    return lines + paragraph(note, width, style="dim")


def _grid_cell(cell: WhatIf | None, is_here: bool) -> str:
    if cell is None:
        return "-"
    spare = "" if cell.verdict == "unknown" else f" {gib(cell.worst_headroom_bytes)}"
    return f"{'* ' if is_here else ''}{VERDICTS[cell.verdict]}{spare}"


def _before_after_lines(before: MemoryReport, after: MemoryReport, width: int) -> list[Text]:
    """Set the reserved peaks of two reports side by side."""
    lines = heading("Before and after the fix")
    earlier = {gpu.index: gpu for gpu in before.gpus}
    rows = [("GPU", "role", "reserved", "after", "drop", "headroom", "after", "verdict", "after")]
    for group in group_gpus(after.gpus):
        old, new = earlier.get(group.indices[0]), group.report
        if old is None:
            continue
        rows.append(
            (
                index_ranges(group.indices), new.role, gib(old.peak_reserved_bytes),
                gib(new.peak_reserved_bytes), gib(old.peak_reserved_bytes - new.peak_reserved_bytes),
                gib(old.headroom_bytes), gib(new.headroom_bytes), VERDICTS[old.verdict],
                VERDICTS[new.verdict],
            )
        )  # fmt: skip
    aligned = table(rows, [False, False, *[True] * 5, False, False], width)
    if aligned is not None:
        lines += [Text(aligned[0], style="bold"), *(Text(line) for line in aligned[1:])]
    else:
        for gpus, role, old_size, new_size, drop, _, _, was, now in rows[1:]:
            text = f"gpu{gpus} {role}: {was} -> {now}, reserved {old_size} -> {new_size} GiB ({drop} less)"
            lines += paragraph(text, width, hang="  ")
    if before.halved_budget is not None:
        other = halved_line(before.halved_budget, HALVED_INSTEAD)
        lines += paragraph(other, width, hang="  ")
    return lines


def _saving_lines(report: MemoryReport, width: int) -> list[Text]:
    if report.savings is None:
        return []
    lines = heading("Saved by the fix")
    never_made = f"{format_bytes(report.savings.never_made_bytes)} of tensors never made, over all GPUs"
    return lines + bullets([never_made, f"peaks lower by {', '.join(peak_drops(report))}"], width)


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
    lines += paragraph(_versions(report.versions.items()), width)
    return lines + paragraph(f"plan {report.plan_fingerprint}", width, style="dim")


def _versions(versions: Iterable[tuple[str, str]]) -> str:
    return ", ".join(f"{name} {version}" for name, version in versions) or "unknown versions"
