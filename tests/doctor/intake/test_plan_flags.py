import dataclasses
from pathlib import Path
from typing import Any

import pytest

from dflash_doctor.errors import DoctorError
from dflash_doctor.intake.cards import card_named
from dflash_doctor.intake.nvml import FoundGpus
from dflash_doctor.intake.plan_flags import PlanFlags, PlanInput, plan_from_flags
from dflash_doctor.intake.presets import plan_names
from dflash_doctor.records.plan import Card


def _none() -> FoundGpus:
    return FoundGpus(cards=(), reason="no NVIDIA driver answers")


def _ask(found: tuple[Card, ...] = (), **flags: str | Path) -> PlanInput:
    reason = None if found else "no NVIDIA driver answers"
    return plan_from_flags(PlanFlags(**flags), find_gpus=lambda: FoundGpus(cards=found, reason=reason))  # type: ignore[arg-type]


def _refused(**flags: Any) -> DoctorError:
    with pytest.raises(DoctorError) as caught:
        _ask(**flags)
    assert caught.value.exit_code == 2
    return caught.value


def _roles(asked: PlanInput) -> tuple[int, int, int]:
    return asked.plan.num_targets, asked.plan.num_drafters, len(asked.plan.cards)


def test_without_flags_it_is_the_founding_run_tuned_and_said_to_be_assumed() -> None:
    asked = _ask()
    plan = asked.plan
    assert (plan.name, plan.model.name) == ("founding-run", "qwen3.6-27b")
    assert (plan.token_budget, plan.max_anchors, plan.draft.block_size) == (65_536, 512, 16)
    assert (plan.target_forward, plan.target_rows, plan.channel_slots) == ("body", 8_192, 2)
    assert (plan.loss.projection, plan.loss.chunked, plan.allocator) == (
        "selected",
        True,
        "expandable_segments:True",
    )
    assert _roles(asked) == (7, 1, 8)
    assert asked.notes == (
        "no NVIDIA driver answers: 8 x 94.97 GiB (rtx-pro-6000) assumed; "
        "--gpus, --gpu and --gpu-memory name others",
    )


def test_the_founding_crash_is_the_naive_pipeline() -> None:
    asked = _ask(preset="founding-crash")
    plan = asked.plan
    assert (plan.target_forward, plan.target_rows, plan.channel_slots, plan.allocator) == (
        "causal-lm",
        0,
        4,
        "",
    )
    assert (plan.loss.kind, plan.loss.projection, plan.loss.chunked) == ("kl", "full-sequence", False)
    assert (_roles(asked), asked.notes) == ((7, 1, 8), ())


@pytest.mark.parametrize("name", plan_names())
def test_every_preset_is_a_good_plan(name: str) -> None:
    assert _ask(preset=name).plan.name == name


def test_flags_go_over_the_plan(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(
        '[model]\npreset = "qwen3-8b"\n[batch]\ntoken_budget = "32Ki"\n[memory]\nmargin = "10%"\n',
        encoding="utf-8",
    )
    plan = _ask(plan=path, token_budget="16Ki").plan
    assert (plan.name, plan.token_budget, plan.margin) == ("mine", 16_384, 0.1)
    assert "together with --plan" in _refused(plan=path, preset="founding-crash").message


def test_every_flag_reaches_its_field() -> None:
    plan = _ask(
        model="qwen3-8b",
        token_budget="64k ",
        max_anchors="256",
        document_tokens="4Ki",
        draft_layers="3",
        layer_ids="1, 9,17",
        block_size="8",
        loss="ce",
        dtype="fp16",
        optimizer="sgd",
        recompute="on",
        channel_slots="3",
        target_rows="0",
        linear_attention="fallback",
        allocator="max_split_size_mb:64",
        margin="2%",
        target_step="a.b:c",
        draft_step="a.b:d",
        targets="2",
        drafters="2",
        gpus="4",
        gpu="t4",
        gpu_memory="14GiB",
    ).plan
    assert (plan.token_budget, plan.max_anchors, plan.document_tokens) == (64_000, 256, 4096)
    assert (plan.draft.num_layers, plan.draft.layer_ids, plan.draft.block_size) == (3, (1, 9, 17), 8)
    assert (plan.loss.kind, plan.dtype, plan.optimizer, plan.recompute) == ("ce", "float16", "sgd", "on")
    assert (plan.channel_slots, plan.target_rows, plan.linear_attention) == (3, 0, "fallback")
    assert (plan.allocator, plan.margin) == ("max_split_size_mb:64", 0.02)
    assert (plan.target_step, plan.draft_step) == ("a.b:c", "a.b:d")
    assert (plan.num_targets, plan.num_drafters) == (2, 2)
    assert [(card.name, card.memory_bytes) for card in plan.cards] == [("t4", 14 * 2**30)] * 4


def test_another_model_drops_the_mask_token_of_the_preset() -> None:
    assert _ask().plan.draft.mask_token_id == 248_070
    assert _ask(model="qwen3-8b").plan.draft.mask_token_id is None


def test_free_gpus_of_this_machine_come_before_assumptions() -> None:
    busy = dataclasses.replace(
        card_named("h100"), usable_bytes=60 * 2**30, other_processes=("vllm (pid 1) holds 19.11 GiB",)
    )
    asked = _ask((busy,) * 4)
    assert _roles(asked) == (3, 1, 4)
    assert asked.notes[0] == "GPU 0: h100, 60.00 GiB of 79.11 GiB free; vllm (pid 1) holds 19.11 GiB"
    assert asked.notes[-1] == "4 GPUs: 3 targets and 1 drafter; --targets and --drafters choose otherwise"


def test_one_gpu_is_taken_as_a_sample_of_a_box() -> None:
    asked = _ask((card_named("h200"),))
    assert _roles(asked) == (7, 1, 8)
    assert asked.notes[-1] == "1 GPU was found: the forecast is for 8 like the first, the added ones empty"


def test_more_gpus_than_there_are_are_taken_to_be_empty() -> None:
    busy = dataclasses.replace(card_named("h200"), usable_bytes=2**36)
    asked = _ask((busy, busy), gpus="3")
    assert [card.usable_bytes == card.memory_bytes for card in asked.plan.cards] == [False, False, True]


@pytest.mark.parametrize(
    ("flags", "roles"),
    [
        ({"gpus": "4"}, (3, 1, 4)),
        ({"gpus": "16", "gpu": "h100"}, (15, 1, 16)),
        ({"gpus": "4", "drafters": "2"}, (2, 2, 4)),
        ({"gpus": "4", "targets": "2"}, (2, 1, 4)),
        ({"targets": "3", "gpu": "b200"}, (3, 1, 4)),
        ({"preset": "founding-crash", "gpus": "2"}, (1, 1, 2)),
        ({"preset": "founding-crash", "gpus": "1"}, (1, 0, 1)),
        ({"gpus": "1", "targets": "1"}, (1, 0, 1)),
        ({"gpus": "1", "drafters": "1"}, (0, 1, 1)),
        ({"targets": "0", "drafters": "1"}, (0, 1, 1)),
        ({"gpus": "4", "drafters": "0"}, (4, 0, 4)),
    ],
)
def test_roles_that_nobody_asked_for_follow_the_gpus(
    flags: dict[str, Any], roles: tuple[int, int, int]
) -> None:
    assert _roles(_ask(**flags)) == roles


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ({"token_budget": "0"}, "--token-budget: 0 is too small; the least is 1"),
        ({"token_budget": "-1"}, "--token-budget: -1 is too small; the least is 1"),
        (
            {"token_budget": "1e12"},
            "--token-budget: 1e12 is 1,000,000,000,000, too large; the most is 2,147,483,647",
        ),
        (
            {"token_budget": "256", "max_anchors": "257"},
            "--max-anchors: 257 anchors are more than the 256 tokens of a packed row",
        ),
        (
            {"document_tokens": "1M"},
            "--document-tokens: a document of 1,000,000 tokens must hold a block of 16 and fit 65,536 tokens",
        ),
        ({"layer_ids": "1,64"}, "--layer-ids: 64 out of range: qwen3.6-27b has 64 layers, 0 to 63"),
        ({"layer_ids": "9,1"}, "--layer-ids: 9,1 do not ascend"),
        ({"layer_ids": "-1,4"}, "--layer-ids: -1 is too small; the least is 0"),
        ({"targets": "9"}, "--targets: 9 targets and 1 drafter need 10 GPUs, there are 8"),
        ({"gpus": "1", "drafters": "2"}, "--drafters: 2 drafters need 2 GPUs, there is 1"),
        ({"targets": "0", "drafters": "0"}, "--targets: 0 targets and 0 drafters leave nothing to forecast"),
        ({"gpus": "1025"}, "--gpus: 1025 is 1,025, too large; the most is 1,024"),
        ({"token_budget": "6,5,5"}, "--token-budget: '6,5,5' is not a count"),
        ({"token_budget": "６５"}, "--token-budget: '６５' is not a count"),
        (
            {"layer_ids": "1,,3"},
            "--layer-ids: a list of counts is expected, such as 1,16,31,46,61, not '1,,3'",
        ),
        ({"gpu": "t4"}, "--dtype: t4 has no bfloat16: that needs compute capability 8.0, it has 7.5"),
        ({"dtype": "bfloat61"}, "--dtype: 'bfloat61' is not known; did you mean 'bfloat16'?"),
        ({"optimizer": "adam"}, "--optimizer: 'adam' is not known; did you mean 'adamw'?"),
        ({"loss": "mse"}, "--loss: 'mse' is not known"),
        ({"margin": "60%"}, "--margin: 60% of each GPU would stay unused; the most is 50%"),
        ({"block_size": "1"}, "--block-size: 1 is too small; the least is 2"),
        (
            {"allocator": "expandable_segments"},
            "--allocator: 'expandable_segments' is not of the form key:value",
        ),
        (
            {"allocator": "expandable_segments:true"},
            "--allocator: expandable_segments is True or False, not true",
        ),
        ({"target_step": "mine.py"}, "--target-step: 'mine.py' is not of the form module:function"),
        ({"preset": "founding"}, "--preset: there is no preset 'founding'; did you mean 'founding-run'?"),
        ({"gpu_memory": "95"}, "--gpu-memory: 95 has no unit; did you mean 95GiB?"),
        ({"gpu": "h1000"}, "--gpu: the card table has no 'h1000'; did you mean 'h100'?"),
    ],
)
def test_a_mistake_names_its_flag(flags: dict[str, str], message: str) -> None:
    assert _refused(**flags).message == message


def test_mistakes_of_flags_and_file_are_told_together(tmp_path: Path) -> None:
    path = tmp_path / "run.toml"
    path.write_text('[model]\npreset = "qwen3-8b"\n[batch]\nmax_anchors = "x"\n', encoding="utf-8")
    with pytest.raises(DoctorError) as caught:
        plan_from_flags(PlanFlags(plan=path, dtype="fp9", gpus="0"), find_gpus=_none)
    assert caught.value.message.splitlines() == [
        f"{path} has 3 mistakes:",
        "  --dtype: 'fp9' is not known",
        "  --gpus: 0 is too small; the least is 1",
        f"  {path}:4: batch.max_anchors: 'x' is not a count",
    ]


def test_a_small_model_needs_its_layers_named(tmp_path: Path) -> None:
    path = tmp_path / "tiny.json"
    path.write_text(
        '{"model_type": "qwen3", "vocab_size": 9, "hidden_size": 8, "num_hidden_layers": 2}', encoding="utf-8"
    )
    error = _refused(model=str(path))
    assert error.message == "--layer-ids: tiny has 2 layers, too few for the default choice of 5"
    assert error.hint == "name them: --layer-ids 0,1"
    assert _ask(model=str(path), layer_ids="0,1").plan.draft.layer_ids == (0, 1)


def test_a_bare_model_type_is_no_plan(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text('{"model_type": "gpt2"}', encoding="utf-8")
    assert "has no vocab_size" in _refused(model=str(path)).message


def test_one_gpu_is_a_targets_and_that_is_said() -> None:
    assert "one GPU holds one role in a forecast: the target" in _ask(gpus="1").notes[-1]


def test_a_run_of_flags_is_named_after_its_model() -> None:
    assert _ask(model="qwen3-8b").plan.name == "qwen3-8b"
    assert _ask(model="qwen3-8b", preset="founding-crash").plan.name == "founding-crash"


def test_a_guessed_card_is_told_with_an_error_too() -> None:
    guess = "GPUs of 15.00 GiB are taken for a10, the nearest known; --gpu names another"
    assert _ask(gpu_memory="15GiB").notes[0].startswith("GPUs of 15.00 GiB are taken for ")
    assert guess.partition("a10")[0] in str(_refused(gpu_memory="15GiB", layer_ids="999").hint)


def test_only_sizes_are_told_how_sizes_are_written() -> None:
    assert _refused(gpus="x").hint is None
    assert "64Ki" in str(_refused(token_budget="x").hint)
