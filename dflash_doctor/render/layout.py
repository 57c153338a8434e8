"""Lay out lines of text: paragraphs, labelled lines, columns; plain enough for a pipe."""

import re
import textwrap
from collections.abc import Sequence

from rich.console import Console
from rich.text import Text

MIN_WIDTH = 40
_UNITS = re.compile(r"(\d) (bytes|[KMG]iB|GPU|tokens|anchors|rows|slot|%)")


def usable_width(console: Console) -> int:
    """Give the width to lay out for; below 40 columns the terminal must wrap."""
    return max(console.width, MIN_WIDTH)


def print_lines(lines: Sequence[Text], console: Console) -> None:
    """Print lines as they are: never cut, wrapped or highlighted again."""
    for line in lines:
        console.print(line, soft_wrap=True, highlight=False)


def heading(text: str) -> list[Text]:
    """Give an empty line and a heading."""
    return [Text(""), Text(text, style="bold")]


def paragraph(
    text: str, width: int, *, indent: str = "", hang: str | None = None, style: str = ""
) -> list[Text]:
    """Wrap a text at words, never between a number and its unit; `hang` indents all lines but the first."""
    wrapped = textwrap.wrap(
        _UNITS.sub("\\1\xa0\\2", text),
        width,
        initial_indent=indent,
        subsequent_indent=indent if hang is None else hang,
        break_long_words=False,
        break_on_hyphens=False,
    )
    return [Text(line.replace("\xa0", " "), style=style) for line in wrapped] or [Text("")]


def labelled(label: str, text: str, width: int, *, column: int, indent: str = "  ") -> list[Text]:
    """Write `label  text` with the text in a column of its own, wrapped under itself."""
    start = indent + label.ljust(column) + " "
    lines = paragraph(text, width, indent=start, hang=" " * len(start))
    if label:
        lines[0].stylize("dim", 0, len(start))
    return lines


def bullets(items: Sequence[str], width: int) -> list[Text]:
    """Write one item a line."""
    return [line for item in items for line in paragraph(item, width, indent="- ", hang="  ")]


def columns(rows: Sequence[Sequence[str]], right: Sequence[bool], *, gap: int = 2) -> list[str]:
    """Align cells in columns; `right` says which are aligned to the right."""
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    return [
        (" " * gap)
        .join(
            cell.rjust(width) if is_right else cell.ljust(width)
            for cell, width, is_right in zip(row, widths, right, strict=True)
        )
        .rstrip()
        for row in rows
    ]


def table(rows: Sequence[Sequence[str]], right: Sequence[bool], width: int) -> list[str] | None:
    """Align cells with as much space between as the width allows; None where they don't fit."""
    for gap in (2, 1):
        lines = columns(rows, right, gap=gap)
        if max(map(len, lines)) <= width:
            return lines
    return None
