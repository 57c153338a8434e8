"""Write the profile of one model's step as lines of text."""

from rich.text import Text

from dflash_doctor.records.report import Allocation, ProfileReport
from dflash_doctor.render.finding_lines import finding_lines
from dflash_doctor.render.layout import bullets, heading, paragraph
from dflash_doctor.render.plot import PLOT_WIDTH, memory_curve, stacked_bar
from dflash_doctor.render.wording import peak_line, short_path
from dflash_doctor.units import format_bytes

MAX_ALLOCATIONS = 10
AXIS_WIDTH = 10
"""Columns that the labels of the plot may take."""


def profile_lines(report: ProfileReport, width: int, *, is_ascii: bool = False) -> list[Text]:
    """Write the whole report for a terminal of this width."""
    lines = paragraph(profile_sentence(report), width, hang="  ", style=_style(report))
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
        lines += heading("Largest allocations")
        for number, allocation in enumerate(report.top_allocations[:MAX_ALLOCATIONS], start=1):
            lines += _allocation_lines(number, allocation, width)
    lines += finding_lines(report.findings, report.not_examined, width)
    if report.notes:
        lines += heading("Notes on this forecast")
        lines += bullets(report.notes, width)
    versions = ", ".join(f"{name} {version}" for name, version in report.versions.items())
    lines += heading("Holds for")
    return lines + paragraph(versions or "unknown versions", width)


def profile_sentence(report: ProfileReport) -> str:
    """Say the peak in one sentence, and whether it fits where a card is named."""
    peak = (
        f"{report.name}: peak {format_bytes(report.peak_allocated_bytes)} allocated, "
        f"{format_bytes(report.peak_reserved_bytes)} reserved"
    )
    if report.fits is None:
        return peak
    card = "the card" if report.capacity_bytes is None else format_bytes(report.capacity_bytes)
    return f"FITS in {card}: {peak}" if report.fits else f"WON'T FIT in {card}: {peak}"


def allocation_line(allocation: Allocation) -> str:
    """Say what an allocation is: shape, dtype, category."""
    dtype = allocation.dtype.removeprefix("torch.")
    return f"{list(allocation.shape)} {dtype}, {allocation.category.replace('_', ' ')}"


def allocation_place(allocation: Allocation) -> tuple[str, str | None]:
    """Say in which phase, module and op an allocation is made, and give its source line."""
    site = allocation.site
    words = ", ".join(part for part in (site.phase, site.module, site.op) if part)
    return words, f"{site.stack[0].file}:{site.stack[0].line}" if site.stack else None


def _allocation_lines(number: int, allocation: Allocation, width: int) -> list[Text]:
    hang = " " * 5
    words, source = allocation_place(allocation)
    first = f"{format_bytes(allocation.bytes)}  {allocation_line(allocation)}"
    lines = paragraph(first, width, indent=f"{number:>3}  ", hang=hang)
    path = short_path(source, width - len(hang)) if source else ""
    if source and len(hang) + len(words) + 2 + len(short_path(source)) <= width:
        return [*lines, Text(f"{hang}{words}, {path}", style="dim")]
    lines += paragraph(words, width, indent=hang, style="dim")
    return [*lines, Text(f"{hang}{path}", style="dim")] if path else lines


def _style(report: ProfileReport) -> str:
    if report.fits is None:
        return "bold"
    return "bold green" if report.fits else "bold red"
