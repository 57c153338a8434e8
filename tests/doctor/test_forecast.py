"""Forecast plans: with hand-made traces where numbers matter, with real ones where traces are resized."""

from collections.abc import Iterator
from dataclasses import replace

import pytest

from dflash_doctor import forecast
from dflash_doctor.errors import DoctorError
from dflash_doctor.forecast import Forecaster, outside_of, roles_of, worst
from dflash_doctor.intake.plan_flags import PlanFlags, plan_from_flags
from dflash_doctor.records.plan import ByteBand, RunPlan
from dflash_doctor.records.report import Verdict
from dflash_doctor.records.trace import AllocationTrace
from tests.doctor.report_builder import GIB, band, card, plan
from tests.doctor.trace_builder import TraceBuilder

CONTEXT, PEER = GIB, GIB // 10


class FakeEngine:
    """Give a role's trace of known size, and keep what was asked for."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, target: int, drafter: int) -> None:
        self.sizes = {"target": target, "drafter": drafter}
        self.asked: list[tuple[str, RunPlan]] = []
        monkeypatch.setattr(forecast, "trace_role", self.trace)

    def trace(self, plan: RunPlan, role: str) -> AllocationTrace:
        self.asked.append((role, plan))
        trace = TraceBuilder(role=role)
        trace.tensor(self.sizes[role] * GIB // 2)
        return trace.build()

    def roles(self) -> list[str]:
        return [role for role, _ in self.asked]


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch) -> FakeEngine:
    return FakeEngine(monkeypatch, target=50, drafter=80)


def test_the_worst_verdict_counts() -> None:
    verdicts: list[Verdict] = ["fits", "tight", "unknown", "wont-fit"]
    assert [worst(verdicts[:count]) for count in range(1, 5)] == verdicts
    assert worst([]) == "unknown"


def test_roles_without_gpus_are_not_traced(engine: FakeEngine) -> None:
    assert roles_of(plan()) == ("target", "drafter")
    assert roles_of(plan(num_drafters=0)) == ("target",)
    Forecaster().forecast(plan(num_targets=0, num_drafters=1))
    assert engine.roles() == ["drafter"]


def test_a_role_is_traced_once_for_all_its_gpus(engine: FakeEngine) -> None:
    found = Forecaster().forecast(plan())
    assert engine.roles() == ["target", "drafter"]
    assert [gpu.role for gpu in found.gpus] == ["target"] * 7 + ["drafter"]
    assert [gpu.index for gpu in found.gpus] == list(range(8))
    assert {gpu.peak_allocated_bytes for gpu in found.gpus[:7]} == {50 * GIB}
    assert (found.gpus[7].peak_allocated_bytes, found.verdict) == (80 * GIB, "fits")


def test_each_kind_of_card_is_judged(engine: FakeEngine) -> None:
    cards = (card(60 * GIB), card(53 * GIB), card(50 * GIB), card(100 * GIB))
    found = Forecaster().forecast(plan(num_targets=3, cards=cards))
    assert [gpu.verdict for gpu in found.gpus] == ["fits", "tight", "wont-fit", "fits"]
    assert [gpu.headroom_bytes for gpu in found.gpus] == [9 * GIB, 2 * GIB, -GIB, 19 * GIB]
    assert found.verdict == "wont-fit"


def test_gpus_without_a_role_are_idle(engine: FakeEngine) -> None:
    found = Forecaster().forecast(plan(num_targets=2))
    assert [gpu.role for gpu in found.gpus[2:]] == ["drafter", "idle", "idle", "idle", "idle", "idle"]
    assert found.verdict == "fits"


def test_each_side_talks_to_the_other_and_drafters_among_themselves() -> None:
    gpu = replace(
        card(), context=band(CONTEXT), nccl_per_peer=ByteBand(low=0, likely=PEER, high=2 * PEER, basis="")
    )
    both = plan(num_targets=5, num_drafters=3)
    assert outside_of(both, "target", gpu).likely == CONTEXT + 3 * PEER
    assert outside_of(both, "drafter", gpu).likely == CONTEXT + 7 * PEER
    assert outside_of(both, "drafter", gpu).high == CONTEXT + 14 * PEER


def test_a_trace_is_taken_again_where_the_role_sees_no_difference(engine: FakeEngine) -> None:
    forecaster = Forecaster()
    forecaster.forecast(plan())
    forecaster.forecast(plan(name="another"))
    assert engine.roles() == ["target", "drafter"]
    forecaster.forecast(plan(max_anchors=64))
    assert engine.roles() == ["target", "drafter", "drafter"]
    forecaster.forecast(plan(max_anchors=64, target_step="math:sqrt"))
    assert engine.roles()[3:] == ["target", "drafter"]


def test_a_step_that_is_not_there_is_refused_before_anything_is_traced(engine: FakeEngine) -> None:
    with pytest.raises(DoctorError, match="cannot load the step 'math:draft'"):
        Forecaster().forecast(plan(draft_step="math:draft"))
    assert engine.asked == []


def test_a_probe_tells_the_least_bytes_to_spare(engine: FakeEngine) -> None:
    cards = (card(60 * GIB), card(100 * GIB))
    probed = plan(num_targets=1, cards=cards, token_budget=1_024, margin=0.05)
    found = Forecaster().probe(probed, probed)
    assert (found.token_budget, found.verdict) == (1_024, "fits")
    assert found.spare_bytes == found.most_spare_bytes == (60 - 1 - 50 - 3) * GIB


def test_a_grid_cell_tells_the_headroom_of_the_fullest_gpu(engine: FakeEngine) -> None:
    cards = (card(60 * GIB), card(89 * GIB))
    asked = plan(num_targets=1, cards=cards, margin=0.04)
    cell = Forecaster().what_if(asked, asked)
    assert (cell.token_budget, cell.max_anchors) == (65_536, 512)
    assert (cell.verdict, cell.worst_headroom_bytes) == ("fits", 8 * GIB)


# Traces that are resized


@pytest.fixture(scope="module")
def small() -> Iterator[RunPlan]:
    flags = PlanFlags(
        model="qwen3-0.6b", token_budget="16_384", max_anchors="64", draft_layers="1", target_rows="4_096",
        gpus="2", targets="1", gpu="rtx-pro-6000",
    )  # fmt: skip
    yield plan_from_flags(flags).plan


@pytest.mark.parametrize(
    ("document_tokens", "budget"), [(None, 8_192), (None, 24_576), (16_384, 8_192), (12_288, 24_576)]
)
def test_a_probe_of_another_budget_is_what_its_forecast_would_be(
    small: RunPlan, document_tokens: int | None, budget: int
) -> None:
    known = replace(small, document_tokens=document_tokens)
    other = replace(known, token_budget=budget)
    probed = Forecaster().what_if(other, known)
    forecast = Forecaster().forecast(other)
    assert probed.worst_headroom_bytes == min(gpu.headroom_bytes for gpu in forecast.gpus)


def test_a_forecast_after_a_probe_is_told_from_its_own_trace(small: RunPlan) -> None:
    other = replace(small, token_budget=8_192)
    forecaster = Forecaster()
    forecaster.forecast(small)
    forecaster.probe(other, small)
    after, fresh = forecaster.forecast(other).gpus[0], Forecaster().forecast(other).gpus[0]
    assert after == fresh
    assert sum(after.by_category_bytes.values()) == after.peak_allocated_bytes


def test_a_target_that_takes_the_whole_row_is_traced_at_every_budget(engine: FakeEngine) -> None:
    whole = plan(target_rows=0)
    Forecaster().probe(replace(whole, token_budget=8_192), whole)
    assert [asked.token_budget for _, asked in engine.asked] == [8_192, 8_192]


def test_a_target_in_pieces_is_traced_once_for_all_budgets(engine: FakeEngine) -> None:
    forecaster = Forecaster()
    for budget in (65_536, 32_768, 131_072):
        forecaster.probe(plan(token_budget=budget), plan())
    assert engine.roles() == ["target", "drafter", "drafter", "drafter"]
