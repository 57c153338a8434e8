"""Fire and silence the rules on what the doctor cannot know."""

from dflash_doctor.rules.certainty import UntracedOp, ValueDependentShape
from tests.doctor.rules.test_vocabulary import check, context_of
from tests.doctor.trace_builder import TraceBuilder


def test_df901_fires_on_ops_without_a_model() -> None:
    trace = TraceBuilder()
    trace.op("mm.default", out=(4, 4))
    trace.untraced = [f"mine.scan{i}" for i in range(7)]
    (found,) = check(UntracedOp, context_of(trace.build()))
    assert found.message == (
        "inner allocations of mine.scan0, mine.scan1, mine.scan2, mine.scan3, mine.scan4 and 2 more "
        "are not known and count as nothing"
    )
    assert (found.bytes, found.severity, found.gpus) == (None, "warning", tuple(range(7)))


def test_df901_is_silent_where_every_op_is_modelled() -> None:
    trace = TraceBuilder()
    trace.op("mm.default", out=(4, 4))
    assert check(UntracedOp, context_of(trace.build())) == []


def test_df902_fires_once_a_line_on_values_that_are_not_known() -> None:
    trace = TraceBuilder()
    trace.op("mm.default", out=(4, 4))
    trace.value_read(12, known=False, count=3)
    trace.value_read(12, known=False)
    trace.value_read(30, known=False)
    found = check(ValueDependentShape, context_of(trace.build()))
    assert [(f.source, f.message) for f in found] == [
        ("model.py:12", "the host reads a value back 4 times that the forecast cannot know"),
        ("model.py:30", "the host reads a value back once that the forecast cannot know"),
    ]


def test_df902_is_silent_on_known_values() -> None:
    trace = TraceBuilder()
    trace.op("mm.default", out=(4, 4))
    trace.value_read(12, known=True)
    assert check(ValueDependentShape, context_of(trace.build())) == []
