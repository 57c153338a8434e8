"""What a rule may look at: traces, plan, forecast, and who read what."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from dflash_doctor.records.finding import Severity
from dflash_doctor.records.plan import RunPlan
from dflash_doctor.records.reads import PartlyRead, Unread
from dflash_doctor.records.report import GpuReport
from dflash_doctor.records.source import is_users, short_source
from dflash_doctor.records.trace import AllocationTrace, Site

GIB = 2**30
ERROR_SHARE, WARNING_SHARE = 0.10, 0.01
"""Shares of a card from which waste is an error, and a warning."""
TYPICAL_CARD_BYTES = 80 * GIB
"""Stands for the card where none is known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RuleContext:
    """Everything that rules are handed; the mappings go by role."""

    traces: Mapping[str, AllocationTrace] = field(default_factory=dict)
    gpus_of_role: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    plan: RunPlan | None = None
    gpu_reports: tuple[GpuReport, ...] = ()
    unread: Mapping[str, tuple[Unread, ...]] = field(default_factory=dict)
    partly_read: Mapping[str, tuple[PartlyRead, ...]] = field(default_factory=dict)
    vocab_size: int | None = None

    def op_traces(self) -> dict[str, AllocationTrace]:
        """Give the traces that know their ops; a memory snapshot does not."""
        return {role: trace for role, trace in self.traces.items() if trace.ops}

    def gpus(self, role: str) -> tuple[int, ...]:
        """Give the GPUs of a role, empty where none are named."""
        return self.gpus_of_role.get(role, ())

    def vocabulary(self, role: str) -> int | None:
        """Give the vocabulary size of a role's model, None where it is not known."""
        trace = self.traces.get(role)
        return trace.vocab_size if trace is not None and trace.vocab_size else self.vocab_size

    def capacity(self, gpus: tuple[int, ...]) -> int | None:
        """Give the bytes of the smallest of these GPUs, None where no card is known."""
        sizes = [report.capacity_bytes for report in self.gpu_reports if report.index in gpus]
        if not sizes and self.plan is not None:
            sizes = [card.usable_bytes for i, card in enumerate(self.plan.cards) if i in gpus]
        return min(sizes, default=None)

    def weigh(self, num_bytes: int, gpus: tuple[int, ...]) -> Severity:
        """Grade waste by the share of a card that it takes."""
        share = num_bytes / (self.capacity(gpus) or TYPICAL_CARD_BYTES)
        if share > ERROR_SHARE:
            return "error"
        return "warning" if share > WARNING_SHARE else "info"


def source_of(site: Site) -> str | None:
    """Give `file:line` of the innermost frame, None where the stack is not known."""
    return f"{site.stack[0].file}:{site.stack[0].line}" if site.stack else None


def caller_of(site: Site) -> str | None:
    """Give the short `file:line` of the first frame of the user's own code, None where it is the site."""
    for depth, frame in enumerate(site.stack):
        if is_users(frame.file):
            return short_source(f"{frame.file}:{frame.line}") if depth else None
    return None


def output_name(site: Site) -> str:
    """Name logits by the module that makes them, or by their width where no module does."""
    return f"{site.module.rpartition('.')[2] or 'full-vocabulary'} output"


def shape_text(shape: tuple[int, ...]) -> str:
    """Write a shape as Python writes a list."""
    return str(list(shape))
