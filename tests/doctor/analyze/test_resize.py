"""Resize a target's slots: the result must be that of a trace of the other size."""

from dataclasses import replace

import pytest

from dflash_doctor.analyze.replay import replay
from dflash_doctor.analyze.resize import resize_slots
from dflash_doctor.engines.roles import trace_role
from dflash_doctor.intake.plan_flags import PlanFlags, plan_from_flags
from dflash_doctor.records.plan import RunPlan
from dflash_doctor.records.trace import AllocationTrace, Storage
from tests.doctor.trace_builder import TraceBuilder


@pytest.fixture(scope="module")
def plan() -> RunPlan:
    flags = PlanFlags(model="qwen3-0.6b", token_budget="24_576", target_rows="4096", gpus="8", gpu="h100")
    return plan_from_flags(flags).plan


@pytest.fixture(scope="module")
def known(plan: RunPlan) -> AllocationTrace:
    return trace_role(plan, "target")


def sizes(trace: AllocationTrace) -> list[tuple[int, tuple[int, ...]]]:
    held = [s for s in trace.storages if s.category in ("features", "inputs")]
    return [(s.bytes, s.shape) for s in held]


@pytest.mark.parametrize("tokens", [16_384, 32_768])
@pytest.mark.parametrize("allocator", ["", "expandable_segments:True"])
def test_a_resized_trace_has_the_peaks_of_a_trace_of_that_size(
    plan: RunPlan, known: AllocationTrace, tokens: int, allocator: str
) -> None:
    true = trace_role(replace(plan, token_budget=tokens), "target")
    resized = resize_slots(known, 24_576, tokens)
    assert sizes(resized) == sizes(true)
    mine, theirs = (replay(trace, allocator=allocator) for trace in (resized, true))
    assert mine.peak_allocated_bytes == theirs.peak_allocated_bytes
    assert mine.peak_reserved_bytes == theirs.peak_reserved_bytes


def test_only_what_holds_the_whole_row_is_resized() -> None:
    trace = TraceBuilder()
    trace.tensor(4_096, 10, category="features")
    trace.tensor(4_096, dtype="int64", category="inputs")
    trace.tensor(4_096, 10, category="weights")
    trace.tensor(4_096, 10, category="activations")
    trace.tensor(7, 10, category="features")
    before = trace.build()
    after = resize_slots(before, 4_096, 1_024)

    def smaller(storage: Storage, shape: tuple[int, ...]) -> Storage:
        return replace(storage, bytes=storage.bytes // 4, shape=shape)

    first, second, *rest = before.storages
    assert after.storages == (smaller(first, (1_024, 10)), smaller(second, (1_024,)), *rest)
    assert replace(after, storages=before.storages) == before


def test_the_same_size_is_the_same_trace(known: AllocationTrace) -> None:
    assert resize_slots(known, 24_576, 24_576) is known
