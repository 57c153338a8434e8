"""Run all rules, with and without what they need."""

import inspect

from dflash_doctor.rules.context import RuleContext
from dflash_doctor.rules.registry import all_rules, find_rule, run_rules
from dflash_doctor.rules.rule import SECTIONS
from tests.doctor.report_builder import GIB, gpu, plan
from tests.doctor.rules.test_vocabulary import context_of, founding_drafter
from tests.doctor.trace_builder import TraceBuilder


def test_codes_are_unique_sorted_and_findable() -> None:
    codes = [rule.code for rule in all_rules()]
    assert codes == sorted(set(codes))
    assert len(codes) == 11
    assert all(find_rule(rule.code.lower()) is rule and find_rule(rule.name) is rule for rule in all_rules())
    assert find_rule("DF999") is None


def test_every_rule_is_documented_by_the_same_sections() -> None:
    for rule in all_rules():
        lines = (inspect.getdoc(rule) or "").splitlines()
        assert lines[0].endswith("."), rule.code
        assert tuple(line[3:] for line in lines if line.startswith("## ")) == SECTIONS, rule.code
        assert rule.needs, rule.code


def test_unmet_needs_are_not_examined_and_never_clean() -> None:
    findings, not_examined = run_rules(RuleContext())
    assert findings == ()
    reasons = {item.code: item.reason for item in not_examined}
    assert set(reasons) == {rule.code for rule in all_rules()}
    assert reasons["DF001"] == "no trace of ops"
    assert reasons["DF401"] == "no plan and no GPU to fit on"


def test_a_snapshot_without_ops_proves_nothing() -> None:
    trace = TraceBuilder(vocab_size=None)
    trace.tensor(4, 4)
    _, not_examined = run_rules(RuleContext(traces={"target": trace.build()}))
    assert "DF001" in {item.code for item in not_examined}


def test_an_unknown_vocabulary_and_an_untraced_role_are_said() -> None:
    trace = TraceBuilder(vocab_size=None)
    trace.op("mm.default", out=(4, 4))
    _, not_examined = run_rules(context_of(trace.build(), plan=plan()))
    reasons = {item.code: item.reason for item in not_examined}
    assert reasons["DF001"] == "no known vocabulary size"
    assert reasons["DF104"] == "no op trace of the drafter"
    assert "DF301" not in reasons


def test_findings_come_most_severe_first() -> None:
    reports = tuple(gpu(i, activations=45 * GIB, verdict="wont-fit", reserved=110 * GIB) for i in range(8))
    context = context_of(founding_drafter(), plan=plan(allocator=""), gpu_reports=reports)
    findings, _ = run_rules(context)
    assert [(f.code, f.severity) for f in findings] == [
        ("DF002", "error"), ("DF003", "error"), ("DF301", "error"), ("DF501", "warning"),
    ]  # fmt: skip
