"""Write the profile of one model's step as lines of text."""

from collections import Counter
from collections.abc import Sequence

from rich.text import Text

from dflash_doctor.records.report import Allocation, ProfileReport
from dflash_doctor.render.finding_lines import finding_lines
from dflash_doctor.render.layout import bullets, heading, paragraph
from dflash_doctor.render.plot import PLOT_WIDTH, memory_curve, stacked_bar
from dflash_doctor.render.wording import peak_line, place_words, short_path, versions_text
from dflash_doctor.units import format_bytes

MAX_ALLOCATIONS = 10
AXIS_WIDTH = 10
"""Columns that the labels of the plot may take."""
NARROW_HANG = 4


def profile_lines(report: ProfileReport, width: int, *, is_ascii: bool = False) -> list[Text]:
    """Write the whole report for a terminal of this width."""
    lines = paragraph(profile_sentence(report), width, hang="  ", style=_style(report))
    if report.settings:
        lines += paragraph(settings_line(report), width, hang="  ")
    engine = f"{report.engine} engine, {report.seconds:.1f} s"
    lines += paragraph(f"resident {format_bytes(report.resident_bytes)}; {engine}", width, style="dim")
    lines += paragraph(f"peak in {peak_line(report.peak_at)}", width, hang="  ")
    if report.peak_at.source:
        lines.append(Text("  " + short_path(report.peak_at.source, width - 2)))
    lines += heading("Alive at the peak")
    lines += stacked_bar(report.by_category_bytes, min(width, PLOT_WIDTH))
    lines += heading("Over time")
    plot_width = min(PLOT_WIDTH, width - AXIS_WIDTH)
    lines += memory_curve(report.curve, report.phases, width=plot_width, is_ascii=is_ascii)
    if report.top_allocations:
        lines += heading("Largest allocations at the peak")
        lines += _allocation_lines(report.top_allocations, width)
    lines += finding_lines(report.findings, report.not_examined, width)
    if report.notes:
        lines += heading("Notes on this forecast")
        lines += bullets(report.notes, width)
    lines += heading("Holds for")
    return lines + paragraph(versions_text(report.versions), width)


def profile_sentence(report: ProfileReport) -> str:
    """Say the peak in one sentence, and whether it fits where a card is named."""
    peak = (
        f"{report.name} peaks at {format_bytes(report.peak_allocated_bytes)} allocated, "
        f"{format_bytes(report.peak_reserved_bytes)} reserved"
    )
    if report.fits is None:
        return peak
    card = "the card" if report.capacity_bytes is None else format_bytes(report.capacity_bytes)
    return f"FITS in {card}: {peak}" if report.fits else f"WON'T FIT in {card}: {peak}"


def settings_line(report: ProfileReport) -> str:
    """Say what was run in one line."""
    run = report.settings
    words = [f"{run['mode']}, {run['batch']} x {run['seq']:,} tokens", str(run["dtype"]), str(run["attn"])]
    for flag in ("optimizer", "linear-attention", "allocator"):
        if run.get(flag):
            words.append(str(run[flag]))
    if run.get("clip"):
        words.append(f"clip {run['clip']:g}")
    if run.get("gradient-checkpointing"):
        words.append("gradient checkpointing")
    return ", ".join(words)


def allocation_rows(allocations: Sequence[Allocation], *, quote: str = "") -> list[tuple[str, str, str, str]]:
    """Give size, tensor, place and source line of the largest ones; those that are alike are one row."""
    rows = []
    for allocation, count in Counter(map(_alike, allocations[:MAX_ALLOCATIONS])).items():
        num_bytes, shape, dtype, category, phase, module, op, source = allocation
        times = f"{count} x " if count > 1 else ""
        tensor = f"{list(shape)} {dtype.removeprefix('torch.')}, {category.replace('_', ' ')}"
        where = place_words(phase, module, op, quote=quote)
        rows.append((f"{times}{format_bytes(num_bytes)}", tensor, where, source))
    return rows


def _alike(allocation: Allocation) -> tuple[int, tuple[int, ...], str, str, str, str, str, str]:
    """Give what is shown of an allocation."""
    site = allocation.site
    source = f"{site.stack[0].file}:{site.stack[0].line}" if site.stack else ""
    tensor = (allocation.bytes, allocation.shape, allocation.dtype, allocation.category)
    return (*tensor, site.phase, site.module, site.op, source)


def _allocation_lines(allocations: Sequence[Allocation], width: int) -> list[Text]:
    """Write each with its size in a column, and its place below, on one line where that is wide enough."""
    rows = allocation_rows(allocations)
    column = max(len(size) for size, *_ in rows)
    longest = max(len(short_path(source)) for *_, source in rows)
    hang = " " * (column + 2 if column + 2 + longest <= width else NARROW_HANG)
    lines: list[Text] = []
    for size, tensor, where, source in rows:
        path = short_path(source, width - len(hang)) if source else ""
        lines += paragraph(tensor, width, indent=f"{size:>{column}}  ", hang=" " * (column + 2))
        if len(hang) + len(where) + 2 + len(short_path(source)) <= width:
            lines.append(Text(hang + ", ".join(part for part in (where, path) if part), style="dim"))
        else:
            lines += paragraph(where, width, indent=hang, style="dim")
            lines += [Text(hang + path, style="dim")] if path else []
    return lines


def _style(report: ProfileReport) -> str:
    if report.fits is None:
        return "bold"
    return "bold green" if report.fits else "bold red"
