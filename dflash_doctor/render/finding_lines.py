"""Write findings as lines of text, most severe first."""

from collections.abc import Sequence

from rich.text import Text

from dflash_doctor.records.finding import Finding, NotExamined
from dflash_doctor.render.finding_wording import (
    FOUND_BEFORE,
    NOTHING_FOUND,
    SEVERITY_HEADINGS,
    ToldFinding,
    by_reason,
    by_severity,
    fix_line,
    headline,
    what_line,
)
from dflash_doctor.render.layout import bullets, heading, labelled, paragraph

STYLES = {"error": "bold red", "warning": "yellow", "info": "cyan"}
LABEL_WIDTH = 4


def finding_lines(
    findings: Sequence[Finding], not_examined: Sequence[NotExamined], width: int, *, none: str = NOTHING_FOUND
) -> list[Text]:
    """Write all findings, or that there are none, then the rules that could not be examined."""
    lines = _by_severity(findings, width) if findings else heading(none)
    if not_examined:
        lines += heading("Not examined")
        lines += bullets(by_reason(not_examined), width)
    return lines


def earlier_finding_lines(findings: Sequence[Finding], width: int) -> list[Text]:
    """Write what was found in the plan that another one mends."""
    return _by_severity(findings, width, lead=f"{FOUND_BEFORE}: ")


def _by_severity(findings: Sequence[Finding], width: int, lead: str = "") -> list[Text]:
    lines: list[Text] = []
    for severity, group in by_severity(findings):
        name = SEVERITY_HEADINGS[severity]
        lines += heading(f"{lead}{name.lower() if lead else name} ({len(group)})")
        for number, told in enumerate(group):
            lines += [Text("")] if number else []
            lines += _one(told, width)
    return lines


def _one(told: ToldFinding, width: int) -> list[Text]:
    finding = told.finding
    lines = paragraph(headline(finding), width, hang="  ", style=STYLES[finding.severity])
    if place := told.place(width - LABEL_WIDTH - 3):
        lines += labelled("at", place, width, column=LABEL_WIDTH)
    if what := what_line(finding):
        lines += labelled("what", what, width, column=LABEL_WIDTH)
    if finding.fix is not None:
        lines += labelled("fix", fix_line(finding.fix), width, column=LABEL_WIDTH)
    return lines
