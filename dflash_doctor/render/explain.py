"""Print the documentation of rules, as it stands in their docstrings."""

import inspect
from collections.abc import Iterable, Sequence
from typing import Protocol

from rich.console import Console
from rich.text import Text

from dflash_doctor.records.finding import Severity
from dflash_doctor.render.finding_lines import STYLES
from dflash_doctor.render.layout import heading, paragraph, print_lines, table, usable_width


class Documented(Protocol):
    """What is printed of a rule: a class with these and a docstring."""

    @property
    def code(self) -> str:
        """The code, `DF001`."""

    @property
    def name(self) -> str:
        """The name in words joined by hyphens."""

    @property
    def severity(self) -> Severity:
        """The highest severity that the rule reports."""


def render_rule(rule: Documented, console: Console) -> None:
    """Print one rule: its head, then its docstring with the code of its examples left as it is."""
    width = usable_width(console)
    lines = [Text(f"{rule.code} {rule.name} ({rule.severity})", style=STYLES[rule.severity])]
    is_below_heading = False
    for block in _blocks(rule):
        is_heading = block[0].startswith("## ")
        if is_heading:
            lines += heading(block[0][3:])
        else:
            lines += [] if is_below_heading else [Text("")]
            is_code = all(line.startswith("    ") for line in block)
            code = [Text(line, style="cyan") for line in block]
            lines += code if is_code else paragraph(" ".join(block), width)
        is_below_heading = is_heading
    print_lines(lines, console)


def render_rules(rules: Iterable[Documented], console: Console) -> None:
    """Print one line a rule: code, severity, name, and what it finds."""
    listed = list(rules)
    width = usable_width(console)
    rows = [(rule.code, rule.severity, rule.name, summary_of(rule)) for rule in listed]
    aligned = table(rows, [False] * 4, width) if rows else []
    lines: list[Text] = []
    if aligned is None:
        for code, severity, name, summary in rows:
            lines += [
                Text(f"{code} {name} ({severity})", style="bold"),
                *paragraph(summary, width, indent="  "),
            ]
    else:
        lines += [Text(line) for line in aligned]
    print_lines([*lines, Text(""), Text("dflash-doctor explain CODE tells more.", style="dim")], console)


def summary_of(rule: Documented) -> str:
    """Give the first line of a rule's docstring."""
    return (inspect.getdoc(rule) or "").partition("\n")[0]


def _blocks(rule: Documented) -> Sequence[list[str]]:
    """Split a docstring at its empty lines."""
    blocks: list[list[str]] = [[]]
    for line in (inspect.getdoc(rule) or "").splitlines():
        if line.strip():
            blocks[-1].append(line)
        elif blocks[-1]:
            blocks.append([])
    return [block for block in blocks if block]
