"""What every rule is: a code, a name, what it needs, and a check."""

from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import ClassVar, Literal

from dflash_doctor.records.finding import Confidence, Finding, Fix, Severity
from dflash_doctor.records.trace import Site
from dflash_doctor.rules.context import RuleContext, source_of

Need = Literal["trace", "vocabulary", "plan", "fit"]

SECTIONS = (
    "What it does",
    "Why it costs",
    "Example",
    "Instead",
    "How safe the fix is",
    "Known limits",
)
"""The headings of every rule's docstring, in order."""


class Rule(ABC):
    """One kind of finding; its docstring is what `explain CODE` prints."""

    code: ClassVar[str]
    name: ClassVar[str]
    severity: ClassVar[Severity]
    """The highest that it reports."""
    needs: ClassVar[tuple[Need, ...]]

    @abstractmethod
    def check(self, context: RuleContext) -> Iterable[Finding]:
        """Give the findings; called only where every need is met."""

    def finding(
        self, message: str, *, gpus: tuple[int, ...], num_bytes: int | None, severity: Severity | None = None,
        confidence: Confidence = "proved", site: Site | None = None, fix: Fix | None = None,
    ) -> Finding:  # fmt: skip
        """Make a finding of this rule; `site` gives module, op and source line."""
        return Finding(
            code=self.code,
            name=self.name,
            severity=severity or self.severity,
            confidence=confidence,
            gpus=gpus,
            bytes=num_bytes,
            module=site.module or None if site else None,
            op=site.op or None if site else None,
            source=source_of(site) if site else None,
            message=message,
            fix=fix,
        )
