"""Print reports to a terminal or a pipe, at the width that the console has."""

from rich.console import Console

from dflash_doctor.records.report import MemoryReport, ProfileReport
from dflash_doctor.render.layout import print_lines, usable_width
from dflash_doctor.render.preflight_lines import preflight_lines
from dflash_doctor.render.profile_lines import profile_lines


def render_preflight(report: MemoryReport, console: Console, *, before: MemoryReport | None = None) -> None:
    """Print a preflight; `before` is the report of the plan that this one mends."""
    print_lines(preflight_lines(report, usable_width(console), before), console)


def render_profile(report: ProfileReport, console: Console) -> None:
    """Print a profile; terminals without UTF-8 get plain characters."""
    lines = profile_lines(report, usable_width(console), is_ascii=console.options.ascii_only)
    print_lines(lines, console)
