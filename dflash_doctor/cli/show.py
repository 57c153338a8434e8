"""Print reports on stdout, and what happens meanwhile on stderr."""

import json
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING

from rich.console import Console

from dflash_doctor.cli.options import Format
from dflash_doctor.records.report import ProfileReport

if TYPE_CHECKING:
    from dflash_doctor.doctor import PreflightOutcome


class ReportConsole(Console):
    """A console that leaves a closed pipe to the program, where rich would exit with 1: does not fit."""

    def on_broken_pipe(self) -> None:
        """Raise what rich caught."""
        raise BrokenPipeError


def stdout_console() -> Console:
    """Make the console of the report: its terminal's width and colours, none in a pipe or with NO_COLOR."""
    return ReportConsole(highlight=False, soft_wrap=False)


def tell(notes: Iterable[str]) -> None:
    """Say aloud, on stderr, what was found or assumed."""
    for note in notes:
        print(f"note: {note}", file=sys.stderr)


@contextmanager
def progress(what: str) -> Iterator[None]:
    """Show on a terminal's stderr that something is going on."""
    console = Console(stderr=True)
    if not console.is_terminal:
        yield
        return
    with console.status(f"{what} ..."):
        yield


def show_preflight(outcome: "PreflightOutcome", format: Format) -> None:
    """Print a preflight, beside the plan that it mends where there is one."""
    report, before = outcome.report, outcome.before
    if format is Format.json:
        from dflash_doctor.render.json import preflight_json

        _write_json(preflight_json(report, before))
    elif format is Format.md:
        from dflash_doctor.render.markdown import preflight_markdown

        sys.stdout.write(preflight_markdown(report, before))
    else:
        from dflash_doctor.render.console import render_preflight

        render_preflight(report, stdout_console(), before=before)


def show_profile(report: ProfileReport, format: Format) -> None:
    """Print a profile."""
    if format is Format.json:
        from dflash_doctor.render.json import profile_json

        _write_json(profile_json(report))
    elif format is Format.md:
        from dflash_doctor.render.markdown import profile_markdown

        sys.stdout.write(profile_markdown(report))
    else:
        from dflash_doctor.render.console import render_profile

        render_profile(report, stdout_console())


def _write_json(content: Mapping[str, object]) -> None:
    json.dump(content, sys.stdout, ensure_ascii=False, indent=2)
    sys.stdout.write("\n")
