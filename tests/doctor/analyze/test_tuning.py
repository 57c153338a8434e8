from dataclasses import replace

from dflash_doctor.analyze.tuning import savings, state_alone_exceeds, tuned
from dflash_doctor.records.finding import Finding
from dflash_doctor.records.plan import LossSpec, RunPlan
from dflash_doctor.records.report import Savings
from tests.doctor.report_builder import GIB, band, gpu, plan

LOGITS = 65_536 * 248_320 * 2


def founding_crash() -> RunPlan:
    loss = LossSpec(kind="kl", projection="full-sequence", chunked=False, gamma=5.0)
    return plan(
        name="crash", target_forward="causal-lm", target_rows=0, channel_slots=4, loss=loss, allocator=""
    )


def finding(code: str, gpus: tuple[int, ...], num_bytes: int | None) -> Finding:
    return Finding(
        code=code, name="n", severity="error", confidence="proved", gpus=gpus, bytes=num_bytes, module=None,
        op=None, source=None, message="", fix=None,
    )  # fmt: skip


def test_a_tuned_plan_leaves_out_all_waste_and_nothing_else() -> None:
    crash = founding_crash()
    mended = replace(
        crash,
        name="crash-tuned",
        target_forward="body",
        target_rows=8_192,
        channel_slots=2,
        loss=LossSpec(kind="kl", projection="selected", chunked=True, gamma=5.0),
        allocator="expandable_segments:True",
    )
    assert tuned(crash) == mended


def test_tuning_keeps_what_is_set_already() -> None:
    own = plan(target_rows=4_096, channel_slots=1, allocator="max_split_size_mb:128", recompute="on")
    assert tuned(own) == replace(own, name="test-tuned")


def test_tuning_puts_the_trainers_steps_in_the_place_of_the_users() -> None:
    mended = tuned(plan(target_step="mine:target", draft_step="mine:draft"))
    assert (mended.target_step, mended.draft_step) == (None, None)


def test_savings_are_told_twice() -> None:
    before = tuple(gpu(i, activations=30 * GIB) for i in range(3))
    after = (gpu(0, activations=10 * GIB), gpu(1, activations=10 * GIB), gpu(2, activations=31 * GIB))
    found = (
        finding("DF001", (0, 1), LOGITS),
        finding("DF002", (2,), 7 * GIB),
        finding("DF003", (2,), 100 * GIB),
        finding("DF001", (0,), None),
    )
    assert savings(before, after, found) == Savings(
        never_made_bytes=2 * LOGITS + 7 * GIB, peak_drop_bytes=(20 * GIB, 20 * GIB, -GIB)
    )


def test_the_founding_crash_makes_over_200_gib_for_nothing() -> None:
    found = (finding("DF001", tuple(range(7)), LOGITS), finding("DF002", (7,), LOGITS))
    gpus = tuple(gpu(i) for i in range(8))
    assert savings(gpus, gpus, found).never_made_bytes == 260_382_392_320 > 200 * GIB


def test_what_is_resident_alone_exceeds_a_card_with_what_is_outside() -> None:
    outside = band(GIB, GIB // 2)
    assert not state_alone_exceeds(gpu(resident=39 * GIB, capacity=40 * GIB, outside=outside))
    assert state_alone_exceeds(gpu(resident=39 * GIB + 1, capacity=40 * GIB, outside=outside))
