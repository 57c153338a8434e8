"""All rules, and how they are run."""

from collections.abc import Iterable

from dflash_doctor.records.finding import Finding, NotExamined
from dflash_doctor.rules.activations import DenseAttentionMask
from dflash_doctor.rules.allocator import FragmentationGap
from dflash_doctor.rules.certainty import UntracedOp, ValueDependentShape
from dflash_doctor.rules.context import RuleContext
from dflash_doctor.rules.pipeline import FeaturesInFlight
from dflash_doctor.rules.placement import DeviceOverCapacity, ThinHeadroom
from dflash_doctor.rules.rule import Need, Rule
from dflash_doctor.rules.vocabulary import FullSequenceLogits, UnusedFullVocabLogits
from dflash_doctor.rules.vocabulary_loss import Float32LogitsUpcast, UnchunkedVocabLoss

RULES: tuple[type[Rule], ...] = (
    UnusedFullVocabLogits,
    FullSequenceLogits,
    UnchunkedVocabLoss,
    Float32LogitsUpcast,
    DenseAttentionMask,
    DeviceOverCapacity,
    ThinHeadroom,
    FeaturesInFlight,
    FragmentationGap,
    UntracedOp,
    ValueDependentShape,
)
SEVERITIES = ("error", "warning", "info")


def all_rules() -> tuple[type[Rule], ...]:
    """Give every rule, by code."""
    return RULES


def find_rule(code_or_name: str) -> type[Rule] | None:
    """Give the rule of a code or name in any case, None where there is none."""
    wanted = code_or_name.strip().lower()
    return next((rule for rule in RULES if wanted in (rule.code.lower(), rule.name)), None)


def run_rules(
    context: RuleContext, rules: Iterable[type[Rule]] = RULES
) -> tuple[tuple[Finding, ...], tuple[NotExamined, ...]]:
    """Run the rules whose needs are met; the others are not examined, which is not the same as clean.

    Findings come most severe first, then by code, so that causes stand before what follows from them.
    """
    findings: list[Finding] = []
    not_examined: list[NotExamined] = []
    for rule in rules:
        missing = [reason for need in rule.needs if (reason := _missing(need, context))]
        if missing:
            not_examined.append(NotExamined(code=rule.code, reason=" and ".join(missing)))
            continue
        findings.extend(rule().check(context))
        if "trace" in rule.needs and (blind := _roles_without_trace(context)):
            reason = f"no op trace of the {' and the '.join(blind)}"
            not_examined.append(NotExamined(code=rule.code, reason=reason))
    findings.sort(key=lambda f: (SEVERITIES.index(f.severity), f.code, f.gpus, -(f.bytes or 0)))
    return tuple(findings), tuple(not_examined)


def _missing(need: Need, context: RuleContext) -> str | None:
    """Say what is missing for a need, None where it is met."""
    traces = context.op_traces()
    if need == "trace":
        return None if traces else "no trace of ops"
    if need == "vocabulary":
        is_known = not traces or any(context.vocabulary(role) for role in traces)
        return None if is_known else "no known vocabulary size"
    if need == "plan":
        return None if context.plan is not None else "no plan"
    return None if context.gpu_reports else "no GPU to fit on"


def _roles_without_trace(context: RuleContext) -> list[str]:
    traced = context.op_traces()
    return [
        role for role, gpus in context.gpus_of_role.items() if gpus and role != "idle" and role not in traced
    ]
