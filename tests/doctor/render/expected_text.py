"""Compare what is printed with the expected text beside this file."""

from io import StringIO
from pathlib import Path

from rich.console import Console

EXPECTED = Path(__file__).parent / "expected"


def plain_console(width: int) -> tuple[Console, StringIO]:
    """Make a console as a pipe has it: no colour, no terminal."""
    out = StringIO()
    return Console(file=out, width=width, color_system=None), out


def expected(name: str) -> str:
    """Read an expected text."""
    return (EXPECTED / name).read_text(encoding="utf-8")
