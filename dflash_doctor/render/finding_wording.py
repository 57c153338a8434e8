"""Say findings in words: headline, what it is about, where it is, how to mend it."""

import re
from collections.abc import Iterable
from dataclasses import dataclass, replace

from dflash_doctor.records.finding import Finding, Fix, NotExamined, Severity
from dflash_doctor.render.wording import gpus_text, place_words, plain_ops, short_path

SEVERITIES: tuple[Severity, ...] = ("error", "warning", "info")
SEVERITY_HEADINGS: dict[Severity, str] = {"error": "Errors", "warning": "Warnings", "info": "Notes"}
FOUND_BEFORE = "Found before the fix"
NOTHING_FOUND, NOTHING_LEFT = "No findings", "No findings after the fix"
_SHAPE = re.compile(r" (\[\d+(?:, \d+)*\])")


@dataclass(frozen=True, slots=True)
class ToldFinding:
    """A finding with the lines of all those that differ from it in nothing but the line."""

    finding: Finding
    lines: tuple[str, ...]

    def place(self, width: int | None = None) -> str:
        """Give file and lines, `loss.py:82, 83`, empty where they are not known."""
        if not self.finding.source:
            return ""
        file = self.finding.source.rpartition(":")[0]
        lines = ", ".join(self.lines)
        return f"{short_path(file, None if width is None else width - len(lines) - 1)}:{lines}"


def by_severity(findings: Iterable[Finding]) -> list[tuple[Severity, list[ToldFinding]]]:
    """Group findings, most severe first, in their order; what differs in the line only is told once."""
    told: dict[Finding, list[str]] = {}
    for finding in findings:
        file, _, line = (finding.source or "").rpartition(":")
        told.setdefault(replace(finding, source=f"{file}:" if file else None), []).append(line)
    groups = []
    for severity in SEVERITIES:
        group = [ToldFinding(key, tuple(lines)) for key, lines in told.items() if key.severity == severity]
        groups += [(severity, group)] if group else []
    return groups


def headline(finding: Finding) -> str:
    """Give a finding's message with GPUs, code and any doubt; the shape moves to the line below."""
    message = plain_ops(_SHAPE.sub("", finding.message, count=1))
    where = f" on {gpus_text(finding.gpus)}" if finding.gpus else ""
    doubt = "" if finding.confidence == "proved" else f", {finding.confidence}"
    return f"{message}{where} ({finding.code}{doubt})"


def what_line(finding: Finding, *, quote: str = "") -> str:
    """Say what a finding is about: shape, module, op, and that it is proved."""
    shape = _SHAPE.search(finding.message)
    words = place_words("", finding.module or "", finding.op or "", quote=quote)
    proof = "proved by the trace" if finding.confidence == "proved" and finding.op else ""
    return ", ".join(part for part in (shape.group(1) if shape else "", words, proof) if part)


def fix_line(fix: Fix, *, quote: str = "") -> str:
    """Give a fix with how safe it is and the setting that makes it."""
    safety = fix.safety.replace("-", " ")
    return f"{fix.text} ({safety})" + (f"; set {quote}{fix.setting}{quote}" if fix.setting else "")


def by_reason(not_examined: Iterable[NotExamined]) -> list[str]:
    """Give one line for all rules that could not be examined for one reason."""
    reasons: dict[str, list[str]] = {}
    for item in not_examined:
        reasons.setdefault(item.reason, []).append(item.code)
    return [f"{', '.join(codes)}: {reason}" for reason, codes in reasons.items()]
