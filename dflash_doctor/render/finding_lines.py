"""Write findings as lines of text, most severe first."""

from collections.abc import Sequence

from rich.text import Text

from dflash_doctor.records.finding import Finding, NotExamined
from dflash_doctor.render.layout import bullets, heading, labelled, paragraph
from dflash_doctor.render.wording import (
    SEVERITY_HEADINGS,
    by_reason,
    by_severity,
    fix_line,
    headline,
    short_path,
    what_line,
)

STYLES = {"error": "bold red", "warning": "yellow", "info": "cyan"}
LABEL_WIDTH = 4


def finding_lines(findings: Sequence[Finding], not_examined: Sequence[NotExamined], width: int) -> list[Text]:
    """Write all findings, then the rules that could not be examined."""
    lines: list[Text] = []
    for severity, group in by_severity(findings):
        lines += heading(f"{SEVERITY_HEADINGS[severity]} ({len(group)})")
        for number, finding in enumerate(group):
            lines += [Text("")] if number else []
            lines += _one(finding, width)
    if not findings:
        lines += heading("No findings")
    if not_examined:
        lines += heading("Not examined")
        lines += bullets(by_reason(not_examined), width)
    return lines


def _one(finding: Finding, width: int) -> list[Text]:
    lines = paragraph(headline(finding), width, hang="  ", style=STYLES[finding.severity])
    if finding.source:
        place = short_path(finding.source, width - LABEL_WIDTH - 3)
        lines += labelled("at", place, width, column=LABEL_WIDTH)
    if what := what_line(finding):
        lines += labelled("what", what, width, column=LABEL_WIDTH)
    if finding.fix is not None:
        lines += labelled("fix", fix_line(finding.fix), width, column=LABEL_WIDTH)
    return lines
