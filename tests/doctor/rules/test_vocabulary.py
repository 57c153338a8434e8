"""Fire and silence the rules on vocabulary-sized logits."""

from dataclasses import replace
from pathlib import Path

import pytest

from dflash_doctor.analyze.readers import find_partly_read, find_unread
from dflash_doctor.records.finding import Finding
from dflash_doctor.records.trace import AllocationTrace, Site, SourceLine
from dflash_doctor.rules.context import RuleContext
from dflash_doctor.rules.rule import Rule
from dflash_doctor.rules.vocabulary import FullSequenceLogits, UnusedFullVocabLogits
from tests.doctor.report_builder import gpu, plan
from tests.doctor.trace_builder import TraceBuilder

T, H, V, ROWS = 65_536, 5_120, 248_320, 8_192


def context_of(trace: AllocationTrace, **more: object) -> RuleContext:
    role = trace.role
    values: dict[str, object] = {
        "traces": {role: trace},
        "gpus_of_role": {"target": tuple(range(7)), "drafter": (7,)},
        "unread": {role: find_unread(trace, 2**20)},
        "partly_read": {role: find_partly_read(trace, 2**20)},
        "gpu_reports": tuple(gpu(i) for i in range(8)),
        **more,
    }
    return RuleContext(**values)  # type: ignore[arg-type]


def check(rule: type[Rule], context: RuleContext) -> list[Finding]:
    return list(rule().check(context))


def lm_head(trace: TraceBuilder, rows: int = T, width: int = V, line: int = 1_716) -> int:
    hidden, weight = trace.tensor(rows, H), trace.tensor(V, H)
    return trace.op("mm.default", hidden, weight, out=(1, rows, width), module="lm_head", line=line)


def founding_drafter(index: int = ROWS) -> AllocationTrace:
    trace = TraceBuilder(role="drafter", vocab_size=V)
    hidden, weight = trace.tensor(T, H), trace.tensor(V, H)
    logits = trace.op("mm.default", hidden, weight, out=(1, T, V), module="verifier_lm_head", line=50)
    rolled = trace.op("roll.default", logits, out=(1, T, V), line=52)
    picked = trace.op("index.Tensor", rolled, out=(1, index, V), line=53, index=index)
    trace.op("_log_softmax.default", picked, out=(1, index, V), dtype="float32", line=61)
    trace.free(logits, rolled, picked)
    return trace.build()


def test_df001_fires_on_logits_that_nobody_reads() -> None:
    trace = TraceBuilder(vocab_size=V)
    trace.free(lm_head(trace))
    context = context_of(trace.build(), plan=plan(target_forward="causal-lm"))
    (found,) = check(UnusedFullVocabLogits, context)
    assert found.message == "lm_head output [1, 65536, 248320] is never read: 30.31 GiB"
    assert (found.code, found.severity, found.confidence) == ("DF001", "error", "proved")
    assert (found.gpus, found.bytes) == ((0, 1, 2, 3, 4, 5, 6), T * V * 2)
    assert (found.module, found.op, found.source) == ("lm_head", "aten.mm.default", "model.py:1716")
    assert found.fix is not None
    assert (found.fix.safety, found.fix.setting) == ("safe", 'target.forward = "body"')
    assert "model.model(...)" in found.fix.text
    assert "logits_to_keep=1" in found.fix.text


def test_df001_is_silent_on_logits_that_are_read_and_on_other_widths() -> None:
    trace = TraceBuilder(vocab_size=V)
    logits = lm_head(trace)
    trace.op("argmax.default", logits, out=(T,))
    other = trace.op("mm.default", out=(T, 17_408), module="mlp")
    trace.free(logits, other)
    assert check(UnusedFullVocabLogits, context_of(trace.build())) == []


def test_df001_fires_where_only_an_unread_copy_was_made() -> None:
    trace = TraceBuilder(vocab_size=V)
    logits = lm_head(trace)
    upcast = trace.op("_to_copy.default", logits, out=(1, T, V), dtype="float32")
    trace.free(logits, upcast)
    context = context_of(trace.build())
    assert [f.source for f in check(UnusedFullVocabLogits, context)] == ["model.py:1716"]
    assert check(FullSequenceLogits, context) == []


def test_df001_is_only_likely_where_the_caller_still_holds_the_logits() -> None:
    trace = TraceBuilder(vocab_size=V)
    lm_head(trace)
    (found,) = check(UnusedFullVocabLogits, context_of(trace.build()))
    assert found.confidence == "likely"
    assert found.fix is not None
    assert found.fix.safety == "needs-care"


def test_df001_names_the_callers_own_line(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    stack = (
        SourceLine(file="/venv/site-packages/transformers/modeling.py", line=1_716, function="forward"),
        SourceLine(file=f"{Path.cwd()}/train.py", line=46, function="features"),
    )
    trace = TraceBuilder(vocab_size=V)
    trace.free(lm_head(trace))
    context = context_of(trace.build())
    (item,) = context.unread["target"]
    item = replace(item, site=Site(module="lm_head", op="aten.mm.default", phase="forward", stack=stack))
    (found,) = check(UnusedFullVocabLogits, replace(context, unread={"target": (item,)}))
    assert found.source == "/venv/site-packages/transformers/modeling.py:1716"
    assert found.fix is not None
    assert found.fix.text.endswith("; called from train.py:46")


def test_df002_fires_on_the_founding_crash() -> None:
    (found,) = check(FullSequenceLogits, context_of(founding_drafter(), plan=plan()))
    assert found.message == (
        "verifier_lm_head output [1, 65536, 248320]: 8,192 of 65,536 rows read, 12.5 %; "
        "30.31 GiB, and 30.31 GiB again by roll"
    )
    assert (found.code, found.severity, found.confidence) == ("DF002", "error", "proved")
    assert (found.gpus, found.bytes, found.source) == ((7,), T * V * 2, "model.py:50")
    assert found.fix is not None
    assert found.fix.setting == 'loss.projection = "selected"'
    assert found.fix.text == (
        "select the rows first and project them after, at index - 1 because of the roll: "
        "8,192 rows instead of 65,536"
    )


def test_df002_names_logits_that_no_module_makes_by_their_width() -> None:
    trace = TraceBuilder(role="drafter", vocab_size=V)
    logits = trace.op("mm.default", out=(T, V))
    picked = trace.op("index.Tensor", logits, out=(ROWS, V), index=ROWS)
    trace.free(logits, picked)
    (found,) = check(FullSequenceLogits, context_of(trace.build()))
    assert found.message.startswith("full-vocabulary output [65536, 248320]: 8,192 of 65,536 rows read")


def test_df002_is_silent_where_every_row_is_read() -> None:
    assert check(FullSequenceLogits, context_of(founding_drafter(index=T))) == []
