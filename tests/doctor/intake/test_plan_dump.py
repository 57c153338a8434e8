import dataclasses
from pathlib import Path

import pytest

from dflash_doctor.errors import DoctorError
from dflash_doctor.intake.cards import card_named, with_memory
from dflash_doctor.intake.fingerprint import plan_fingerprint
from dflash_doctor.intake.models import resolve_model
from dflash_doctor.intake.plan_dump import dump_plan, write_plan_file
from dflash_doctor.intake.plan_file import read_plan_file
from dflash_doctor.records.plan import DraftSpec, LossSpec, ModelSpec, RunPlan

PLAIN = RunPlan(name="plain", model=resolve_model("qwen3-8b", flag="--model"))
FULL = RunPlan(
    name="every-field",
    model=ModelSpec(
        name="org/own",
        config={
            "model_type": "qwen3",
            "vocab_size": 1000,
            "hidden_size": 64,
            "num_hidden_layers": 12,
            "sliding_window": None,
            "rope_parameters": {"rope_theta": 1e6, "factor": None},
            "layer_types": ["full_attention"] * 12,
            "tie_word_embeddings": True,
        },
        origin="hub org/own",
    ),
    draft=DraftSpec(
        attention="sdpa",
        num_layers=2,
        layer_ids=(1, 5, 9),
        block_size=8,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=16,
        intermediate_size=128,
        layer_types=("sliding_attention", "full_attention"),
        sliding_window=128,
        mask_token_id=999,
    ),
    loss=LossSpec(kind="ce", projection="full-sequence", chunked=False, chunk_rows=256, gamma=4.5),
    token_budget=4096,
    max_anchors=64,
    target_rows=0,
    document_tokens=2048,
    target_forward="causal-lm",
    channel_slots=4,
    dtype="float16",
    optimizer="sgd",
    recompute="on",
    attention="eager",
    linear_attention="fallback",
    num_targets=2,
    num_drafters=2,
    cards=(
        card_named("t4"),
        dataclasses.replace(
            card_named("h100"), usable_bytes=12_345_678_901, other_processes=("python (pid 7)",)
        ),
        card_named("l4"),
        card_named("l4"),
    ),
    allocator="max_split_size_mb:128,roundup_power2_divisions:[64:8,256:4]",
    margin=0.125,
    target_step="my.steps:target",
    draft_step="my.steps:draft",
)


def test_the_full_plan_leaves_no_field_at_its_default() -> None:
    for spec, default in ((FULL, PLAIN), (FULL.draft, DraftSpec()), (FULL.loss, LossSpec())):
        for field in dataclasses.fields(spec):
            assert getattr(spec, field.name) != getattr(default, field.name), field.name


@pytest.mark.parametrize(
    "plan",
    [
        PLAIN,
        FULL,
        dataclasses.replace(PLAIN, cards=(card_named("h200"),) * 8),
        dataclasses.replace(PLAIN, cards=(with_memory(card_named("h200"), 100 * 2**30 + 1),) * 8),
        dataclasses.replace(PLAIN, allocator=""),
    ],
)
def test_a_written_plan_reads_back_the_same(plan: RunPlan, tmp_path: Path) -> None:
    path = tmp_path / "plan.toml"
    write_plan_file(plan, path)
    again = read_plan_file(path)
    sources = {card.source for card in plan.cards}
    assert again == plan
    assert {card.source for card in again.cards} == sources
    assert plan_fingerprint(again) == plan_fingerprint(plan)


def test_a_card_of_the_table_takes_two_lines() -> None:
    text = dump_plan(dataclasses.replace(PLAIN, cards=(card_named("h200"),) * 8))
    assert text.endswith('gpus = 8\ngpu = "h200"\n')


def test_the_trainers_tables_of_a_file_that_is_there_are_kept(tmp_path: Path) -> None:
    path = tmp_path / "run.toml"
    path.write_text(
        'name = "old"\n[model]\npreset = "qwen3-4b"\n\n[train]\nsteps = 10 # few\n', encoding="utf-8"
    )
    write_plan_file(PLAIN, path)
    assert "[train]\nsteps = 10 # few\n" in path.read_text(encoding="utf-8")
    assert read_plan_file(path) == PLAIN


def test_a_file_that_is_no_plan_is_not_overwritten(tmp_path: Path) -> None:
    path = tmp_path / "notes.txt"
    path.write_text("remember the milk", encoding="utf-8")
    with pytest.raises(DoctorError, match="is no plan file"):
        write_plan_file(PLAIN, path)
    assert path.read_text(encoding="utf-8") == "remember the milk"


def test_a_place_that_cannot_be_written_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(DoctorError, match="--fix-to"):
        write_plan_file(PLAIN, tmp_path / "file" / "run.toml")
