"""What a rule found, and what it would need to look at all."""

from dataclasses import dataclass
from typing import Literal

Severity = Literal["error", "warning", "info"]
Confidence = Literal["proved", "likely", "assumed"]
FixSafety = Literal["safe", "changes-numerics", "needs-care"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Fix:
    """A change that mends a finding; `setting` names the plan key or flag where there is one."""

    text: str
    safety: FixSafety
    setting: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One thing worth changing, with the bytes at stake on each GPU concerned.

    `bytes` is per GPU, not the sum. `source` is `file:line` of the code that causes it, where known.
    """

    code: str
    name: str
    severity: Severity
    confidence: Confidence
    gpus: tuple[int, ...]
    bytes: int | None
    module: str | None
    op: str | None
    source: str | None
    message: str
    fix: Fix | None


@dataclass(frozen=True, slots=True, kw_only=True)
class NotExamined:
    """A rule whose needs were not met, and what is missing."""

    code: str
    reason: str
