import pytest

from dflash_doctor.analyze.avoided import avoided_waste
from dflash_doctor.records.plan import LossSpec, ModelSpec
from tests.doctor.report_builder import plan

QWEN = ModelSpec(name="q", config={"model_type": "qwen3", "vocab_size": 248_320}, origin="preset")
TARGET = "full-vocabulary logits would take {} a target: see --preset founding-crash"
DRAFTER = "verifier logits of every row would take {} on the drafter, twice while rolled"


def test_a_tuned_plan_says_what_it_avoids() -> None:
    assert avoided_waste(plan(model=QWEN)) == (TARGET.format("30.31 GiB"), DRAFTER.format("30.31 GiB"))


def test_float32_takes_twice_as_much() -> None:
    lines = avoided_waste(plan(model=QWEN, dtype="float32", token_budget=8_192))
    assert lines == (TARGET.format("7.58 GiB"), DRAFTER.format("7.58 GiB"))


@pytest.mark.parametrize(
    ("changes", "kept"),
    [
        ({"target_forward": "causal-lm"}, DRAFTER),
        ({"target_step": "mine:step"}, DRAFTER),
        ({"num_targets": 0}, DRAFTER),
        ({"loss": LossSpec(kind="ce")}, TARGET),
        ({"loss": LossSpec(projection="full-sequence")}, TARGET),
        ({"draft_step": "mine:step"}, TARGET),
        ({"num_drafters": 0}, TARGET),
    ],
)
def test_what_a_plan_has_is_not_avoided(changes: dict[str, object], kept: str) -> None:
    assert avoided_waste(plan(model=QWEN, **changes)) == (kept.format("30.31 GiB"),)


def test_nothing_is_said_of_an_unknown_vocabulary() -> None:
    assert avoided_waste(plan()) == ()
