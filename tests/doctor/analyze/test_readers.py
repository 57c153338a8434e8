"""Prove readers and partial readers on hand-made traces."""

import pytest

from dflash_doctor.analyze.readers import find_partly_read, find_unread
from dflash_doctor.records.reads import PartlyRead
from tests.doctor.trace_builder import TraceBuilder

T, H, V, ROWS = 65_536, 5_120, 248_320, 8_192
LOGITS_BYTES = T * V * 2


def project(trace: TraceBuilder, line: int = 10, rows: int = T) -> int:
    hidden = trace.tensor(rows, H)
    weight = trace.tensor(V, H)
    return trace.op("mm.default", hidden, weight, out=(rows, V), module="lm_head", line=line)


def partly(trace: TraceBuilder) -> PartlyRead:
    (found,) = find_partly_read(trace.build(), 2**20)
    return found


def test_logits_that_nobody_reads_are_found_and_a_view_is_no_read() -> None:
    trace = TraceBuilder()
    logits = project(trace)
    trace.view(logits)
    trace.free(logits)
    (found,) = find_unread(trace.build(), 2**20)
    assert (found.storage, found.bytes, found.count) == (logits, LOGITS_BYTES, 1)
    assert (found.site.module, found.site.stack[0].line, found.alive_at_end) == ("lm_head", 10, False)


def test_logits_that_somebody_reads_are_not_unread() -> None:
    trace = TraceBuilder()
    logits = project(trace)
    trace.op("argmax.default", logits, out=(T,), dtype="int64")
    trace.free(logits)
    assert find_unread(trace.build(), 2**20) == ()


def test_being_overwritten_is_no_read() -> None:
    trace = TraceBuilder()
    logits = project(trace)
    trace.op("zero_.default", logits, into=logits)
    trace.free(logits)
    assert len(find_unread(trace.build(), 2**20)) == 1


def test_repeated_steps_are_one_finding_with_a_count() -> None:
    trace = TraceBuilder()
    for _ in range(3):
        trace.free(project(trace))
    last = project(trace)
    (found,) = find_unread(trace.build(), 2**20)
    assert found.count == 3
    assert not found.alive_at_end
    assert found.storage != last


def test_an_output_alive_at_the_end_says_so_and_scratch_is_left_out() -> None:
    trace = TraceBuilder()
    logits = project(trace)
    trace.tensor(T, V, category="temporaries", born_at=0)
    (found,) = find_unread(trace.build(), 2**20)
    assert found.storage == logits
    assert found.alive_at_end


def test_small_storages_are_left_out() -> None:
    trace = TraceBuilder()
    trace.free(project(trace))
    assert find_unread(trace.build(), LOGITS_BYTES + 1) == ()


def test_founding_crash_reads_an_eighth_of_its_rows_through_the_roll() -> None:
    trace = TraceBuilder(role="drafter")
    index = trace.tensor(ROWS, dtype="int64", category="inputs")
    logits = project(trace, line=50)
    trace.view(logits)
    rolled = trace.op("roll.default", (logits, (1, T, V)), out=(1, T, V), line=52)
    trace.free(logits)
    picked = trace.op("index.Tensor", rolled, index, out=(1, ROWS, V), line=53, index=ROWS)
    trace.free(rolled)
    trace.op("_log_softmax.default", picked, out=(1, ROWS, V), dtype="float32", line=61)
    trace.free(picked)
    found = partly(trace)
    assert (found.storage, found.rows_total, found.rows_read, found.share) == (logits, T, ROWS, 0.125)
    assert [(step.kind, step.site.op, step.site.stack[0].line, step.bytes) for step in found.chain] == [
        ("computed", "aten.mm.default", 50, LOGITS_BYTES),
        ("moved", "aten.roll.default", 52, LOGITS_BYTES),
        ("picked", "aten.index.Tensor", 53, ROWS * V * 2),
    ]


@pytest.mark.parametrize(
    "movement", ["clone.default", "_to_copy.default", "flip.default", "cat.default", "div.Tensor"]
)
def test_every_movement_is_followed(movement: str) -> None:
    trace = TraceBuilder()
    logits = project(trace)
    moved = trace.op(movement, logits, out=(T, V), dtype="float32")
    picked = trace.op(
        "index_select.default", moved, trace.tensor(ROWS, dtype="int64"), out=(ROWS, V), index=ROWS
    )
    trace.free(logits, moved, picked)
    assert partly(trace).rows_read == ROWS


def test_a_copy_into_a_slot_is_followed() -> None:
    trace = TraceBuilder()
    logits = project(trace)
    slot = trace.op("empty.memory_format", out=(T, V))
    trace.op("copy_.default", slot, logits, into=slot)
    trace.op("argmax.default", (slot, (ROWS, V)), out=(ROWS,), dtype="int64")
    trace.free(logits, slot)
    found = {f.storage: f.rows_read for f in find_partly_read(trace.build(), 2**20)}
    assert found == {logits: ROWS}


def test_scaling_in_place_reads_nothing_more() -> None:
    trace = TraceBuilder()
    logits = project(trace)
    trace.op("div_.Tensor", logits, into=logits)
    trace.op("argmax.default", (logits, (ROWS, V)), out=(ROWS,), dtype="int64")
    trace.free(logits)
    assert partly(trace).rows_read == ROWS


def test_a_slice_reads_its_rows_and_distinct_readers_add_up() -> None:
    trace = TraceBuilder()
    logits = project(trace)
    trace.op("argmax.default", (logits, (ROWS, V)), out=(ROWS,), dtype="int64")
    trace.op("amax.default", (logits, (ROWS, V)), out=(ROWS,))
    trace.free(logits)
    assert partly(trace).rows_read == 2 * ROWS


def test_columns_and_single_elements_count_as_whole_rows() -> None:
    trace = TraceBuilder()
    logits = project(trace)
    trace.op("amax.default", (logits, (T, 16)), out=(T,))
    trace.free(logits)
    assert find_partly_read(trace.build(), 2**20) == ()
    gathered = TraceBuilder()
    logits = project(gathered)
    gathered.op("gather.default", logits, gathered.tensor(ROWS, 1, dtype="int64"), out=(ROWS, 1), index=ROWS)
    gathered.free(logits)
    assert partly(gathered).rows_read == ROWS


def test_picking_columns_reads_every_row() -> None:
    trace = TraceBuilder()
    logits = project(trace)
    index = trace.tensor(100, dtype="int64")
    trace.op("index_select.default", logits, index, out=(T, 100), index=100)
    trace.free(logits)
    assert find_partly_read(trace.build(), 2**20) == ()


def test_any_other_reader_reads_everything() -> None:
    trace = TraceBuilder()
    logits = project(trace)
    rolled = trace.op("roll.default", logits, out=(T, V), line=2)
    trace.op("index.Tensor", rolled, trace.tensor(ROWS, dtype="int64"), out=(ROWS, V), index=ROWS)
    trace.op("logsumexp.default", logits, out=(T,))
    trace.free(logits, rolled)
    assert partly(trace).storage == rolled


def test_a_shift_by_one_row_is_not_worth_a_word() -> None:
    trace = TraceBuilder()
    logits = project(trace)
    trace.op("_log_softmax.default", (logits, (T - 1, V)), out=(T - 1, V))
    trace.free(logits)
    assert find_partly_read(trace.build(), 2**20) == ()


def test_a_copy_that_nobody_reads_leaves_no_row_read() -> None:
    trace = TraceBuilder()
    logits = project(trace)
    upcast = trace.op("_to_copy.default", logits, out=(T, V), dtype="float32")
    trace.free(logits, upcast)
    found = partly(trace)
    assert (found.storage, found.rows_read, found.share) == (logits, 0, 0.0)


def test_what_is_alive_at_the_end_may_yet_be_read() -> None:
    trace = TraceBuilder()
    logits = project(trace)
    trace.op("clone.default", logits, out=(T, V))
    trace.free(logits)
    assert find_partly_read(trace.build(), 2**20) == ()


def test_two_hundred_thousand_ops_are_merged_by_site() -> None:
    trace = TraceBuilder()
    index = trace.tensor(4, dtype="int64")
    for step in range(50_000):
        logits = trace.op("mm.default", out=(64, 64), line=step % 100)
        rolled = trace.op("roll.default", logits, out=(64, 64))
        picked = trace.op("index.Tensor", rolled, index, out=(4, 64), index=4)
        trace.op("sum.default", picked)
        trace.free(logits, rolled, picked)
    built = trace.build()
    found = find_partly_read(built, 1)
    unread = find_unread(built, 1)
    assert len(found) == 100
    assert {f.count for f in found} == {500}
    assert unread == ()
