"""Write what each GPU holds, where its peak is and why it would not fit, as lines of text."""

from collections.abc import Sequence

from rich.text import Text

from dflash_doctor.records.report import Verdict
from dflash_doctor.render.gpu_table import aligned_gpu_table
from dflash_doctor.render.layout import heading, labelled, paragraph
from dflash_doctor.render.wording import (
    VERDICTS,
    GpuGroup,
    band_text,
    capacity_line,
    gib,
    peak_line,
    plain_ops,
    resident_line,
    short_path,
)
from dflash_doctor.units import format_bytes

STYLES: dict[Verdict, str] = {
    "fits": "bold green",
    "tight": "bold yellow",
    "wont-fit": "bold red",
    "unknown": "bold magenta",
}
LABEL_WIDTH = 11


def gpu_lines(groups: Sequence[GpuGroup], width: int) -> list[Text]:
    """Write the table of GPUs, or their numbers below each other where it is too wide."""
    found = aligned_gpu_table(groups, width) if groups else None
    if found is None:
        return [line for group in groups for line in _stacked(group, width)]
    aligned, note = found
    lines = [Text(""), Text(aligned[0], style="bold")]
    for group, line in zip(groups, aligned[1:], strict=True):
        lines.append(_with_verdict(line, group.report.verdict))
    lines += paragraph(note, width, style="dim")
    for group in groups:
        if group.report.reason:
            lines += paragraph(f"{group.label}: {plain_ops(group.report.reason)}", width, hang="  ")
    return lines


def peak_lines(groups: Sequence[GpuGroup], width: int) -> list[Text]:
    """Say for each group with a role where its peak is and what it holds all the time."""
    busy = [group for group in groups if group.report.peak_allocated_bytes]
    lines = heading("Where the peaks are") if busy else []
    for group in busy:
        gpu = group.report
        lines.append(Text(f"{group.label} {gpu.role}"))
        place = short_path(gpu.peak_at.source, width - LABEL_WIDTH - 3) if gpu.peak_at.source else ""
        for label, text in (
            ("peak", peak_line(gpu.peak_at)),
            ("", place),
            ("resident", resident_line(gpu)),
            ("loading", f"peak {format_bytes(gpu.load_peak_bytes)}"),
            ("capacity", capacity_line(gpu)),
        ):
            lines += labelled(label, text, width, column=LABEL_WIDTH) if text else []
    return lines


def _with_verdict(line: str, verdict: Verdict) -> Text:
    text = Text(line)
    text.stylize(STYLES[verdict], len(line) - len(VERDICTS[verdict]))
    return text


def _stacked(group: GpuGroup, width: int) -> list[Text]:
    """Write a group's numbers below each other, in the order of the table."""
    gpu = group.report
    head = f"{group.label} {gpu.role}: {VERDICTS[gpu.verdict]}"
    lines = [Text(""), _with_verdict(head, gpu.verdict)]
    numbers = [
        ("resident", sum(gpu.resident_bytes.values()), ""),
        ("features", gpu.features_bytes, ""),
        ("activations", gpu.activation_peak_bytes, " at their peak"),
        ("allocated", gpu.peak_allocated_bytes, " peak"),
        ("reserved", gpu.peak_reserved_bytes, " peak"),
        ("outside", gpu.outside.likely, f" (band {band_text(gpu)})"),
        ("capacity", gpu.capacity_bytes, ""),
        ("headroom", gpu.headroom_bytes, ""),
    ]
    for label, size, remark in numbers:
        lines += labelled(label, f"{gib(size):>8} GiB{remark}", width, column=LABEL_WIDTH)
    return lines + (paragraph(plain_ops(gpu.reason), width, indent="  ") if gpu.reason else [])
