import dataclasses

import pytest

from dflash_doctor.intake.cards import card_named
from dflash_doctor.intake.fingerprint import plan_fingerprint
from dflash_doctor.intake.models import resolve_model
from dflash_doctor.records.plan import DraftSpec, RunPlan

MODEL = resolve_model("qwen3-8b", flag="--model")
PLAN = RunPlan(name="a", model=MODEL, cards=(card_named("h100"),) * 8)


def test_a_fingerprint_is_sixteen_hex_digits() -> None:
    assert len(plan_fingerprint(PLAN)) == 16
    assert int(plan_fingerprint(PLAN), 16) >= 0


@pytest.mark.parametrize(
    "same",
    [
        dataclasses.replace(PLAN, name="b"),
        dataclasses.replace(PLAN, model=dataclasses.replace(MODEL, name="x", origin="file y")),
        dataclasses.replace(PLAN, cards=(dataclasses.replace(card_named("h100"), usable_bytes=1),) * 8),
        dataclasses.replace(
            PLAN, cards=(dataclasses.replace(card_named("h100"), name="NVIDIA H100 80GB HBM3"),) * 8
        ),
    ],
)
def test_names_and_free_memory_do_not_count(same: RunPlan) -> None:
    assert plan_fingerprint(same) == plan_fingerprint(PLAN)


@pytest.mark.parametrize(
    "other",
    [
        dataclasses.replace(PLAN, token_budget=1024),
        dataclasses.replace(PLAN, draft=DraftSpec(num_layers=4)),
        dataclasses.replace(PLAN, allocator=""),
        dataclasses.replace(PLAN, cards=PLAN.cards[:7]),
        dataclasses.replace(PLAN, cards=(card_named("h200"),) * 8),
        dataclasses.replace(PLAN, model=resolve_model("qwen3-4b", flag="")),
    ],
)
def test_what_decides_the_memory_counts(other: RunPlan) -> None:
    assert plan_fingerprint(other) != plan_fingerprint(PLAN)
