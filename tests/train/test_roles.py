"""Build what a GPU runs from a plan: for real on the CPU at tiny sizes, and as an engine traces it."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn

from dflash_doctor.engines.roles import trace_role
from dflash_doctor.records.plan import DraftSpec, LossSpec, ModelSpec, RunPlan
from dflash_train import roles, steps
from dflash_train.models.drafter import Drafter
from dflash_train.models.target import Target
from dflash_train.optim import MasterAdamW, PlainOptimizer
from tests.train import tiny

CPU = torch.device("cpu")
IDS = (1, 3, 5)
TOKENS, ANCHORS, BLOCK = 48, 6, 4


def model(**changes: object) -> ModelSpec:
    config: dict[str, object] = {
        "model_type": "qwen3",
        "vocab_size": tiny.VOCAB,
        "hidden_size": tiny.HIDDEN,
        "intermediate_size": 48,
        "num_hidden_layers": 8,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 8,
        "tie_word_embeddings": False,
    }
    return ModelSpec(name="tiny", config=config | changes, origin="test")


def plan(**changes: object) -> RunPlan:
    draft = DraftSpec(
        attention="sdpa",
        num_layers=2,
        layer_ids=IDS,
        block_size=BLOCK,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=8,
        mask_token_id=tiny.VOCAB - 1,
    )
    values: dict[str, Any] = {
        "name": "tiny",
        "model": model(),
        "draft": draft,
        "token_budget": TOKENS,
        "max_anchors": ANCHORS,
        "target_rows": 16,
        "dtype": "float32",
        **changes,
    }
    return RunPlan(**values)


def build(a_plan: RunPlan) -> tuple[Any, Any, Any, Any]:
    """Build target and drafter with random weights, and give the drafter's slots the target's features."""
    torch.manual_seed(0)
    target, target_step = roles.target_role(a_plan, CPU)
    drafter, draft_step = roles.drafter_role(a_plan, CPU)
    for parameter in [*target.parameters(), *drafter.parameters()]:
        if parameter.dim() > 1:
            nn.init.normal_(parameter.data, std=0.1)
    for table in (draft_step.tables.embedding_VH, draft_step.tables.head_VH):
        nn.init.normal_(table)
    return target, target_step, drafter, draft_step


def fill(slots: Any, features_TF: torch.Tensor, last_hidden_TH: torch.Tensor | None) -> None:
    for slot in slots:
        slot.features_TF.copy_(features_TF)
        if slot.last_hidden_TH is not None:
            assert last_hidden_TH is not None
            slot.last_hidden_TH.copy_(last_hidden_TH)


# What runs


@pytest.mark.parametrize("kind", ["ce", "kl", "ce-teacher"])
@pytest.mark.parametrize("optimizer", ["adamw-fused", "adamw", "sgd"])
def test_the_steps_of_a_plan_train_on_a_cpu(
    kind: Any, optimizer: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(roles, "FORECAST_LR", 0.1 if optimizer == "sgd" else 3e-3)
    _, target_step, _, draft_step = build(plan(loss=LossSpec(kind=kind), optimizer=optimizer))
    for slot in target_step.slots:
        slot.features_TF.fill_(float("nan"))
        target_step()
        assert slot.features_TF.isfinite().all()
    slot = target_step.slots[0]
    assert (slot.last_hidden_TH is None) == (kind == "ce")
    fill(draft_step.slots, slot.features_TF, slot.last_hidden_TH)
    losses = [float(draft_step().loss) for _ in range(6)]
    assert losses[-1] < losses[0] - 0.01
    assert all(loss == loss for loss in losses)


def test_slots_are_filled_and_trained_on_in_turn() -> None:
    _, target_step, _, draft_step = build(plan(channel_slots=3))
    for slot in target_step.slots:
        slot.features_TF.zero_()
    seen = []
    for _ in range(4):
        target_step()
        seen.append([bool(slot.features_TF.any()) for slot in target_step.slots])
    assert seen == [[True, False, False], [True, True, False], [True, True, True], [True, True, True]]
    assert [slot.features_TF.shape for slot in draft_step.slots] == [(TOKENS, 3 * tiny.HIDDEN)] * 3
    assert (target_step.next_slot, draft_step.next_slot) == (1, 0)


def test_pieces_and_slots_follow_the_plan() -> None:
    _, target_step, drafter, draft_step = build(plan(document_tokens=8, max_anchors=5))
    assert [(s.start, s.num_documents, s.length) for s in target_step.batch.sub_rows] == [
        (0, 2, 8),
        (16, 2, 8),
        (32, 2, 8),
    ]
    assert draft_step.batch.block_ids_R.shape == (5 * BLOCK,)
    assert drafter.config.num_hidden_layers == 2
    whole = build(plan(target_rows=0))[1]
    assert [s.length for s in whole.batch.sub_rows] == [TOKENS]


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, 16),
        ({"document_tokens": 8}, 8),
        ({"document_tokens": 40}, 40),
        ({"target_rows": 0}, TOKENS),
        ({"target_rows": 4_096}, TOKENS),
    ],
)
def test_the_longest_document_is_the_plans_or_a_piece(changes: dict[str, object], expected: int) -> None:
    assert roles.document_tokens(plan(**changes)) == expected


def test_a_loss_in_one_piece_has_all_rows() -> None:
    assert roles.chunk_rows(plan()) is None
    assert roles.chunk_rows(plan(loss=LossSpec(chunk_rows=7))) == 7
    assert roles.chunk_rows(plan(loss=LossSpec(chunked=False, chunk_rows=7))) == ANCHORS * BLOCK


def test_tied_models_share_one_table() -> None:
    tied = roles.drafter_role(plan(model=model(tie_word_embeddings=True)), CPU)[1]
    assert tied.tables.embedding_VH is tied.tables.head_VH
    untied = roles.drafter_role(plan(), CPU)[1]
    assert untied.tables.embedding_VH is not untied.tables.head_VH


def test_features_are_of_the_plans_layers_or_of_five_spread_over_the_target() -> None:
    config = roles.target_config(plan())
    assert roles.layer_ids(plan(), config) == IDS
    assert roles.layer_ids(plan(draft=DraftSpec()), config) == (1, 2, 3, 4, 5)


def test_the_optimizer_is_the_plans() -> None:
    drafter = roles.drafter_role(plan(), CPU)[0]
    assert isinstance(drafter, Drafter)
    fused = roles.build_optimizer(plan(), drafter)
    plain = roles.build_optimizer(plan(optimizer="sgd"), drafter)
    assert isinstance(fused, MasterAdamW)
    assert isinstance(plain, PlainOptimizer)
    assert isinstance(plain.optimizer, torch.optim.SGD)
    assert fused.clip_norm == plain.clip_norm == roles.CLIP_NORM


@pytest.mark.parametrize("kind", ["ce", "kl"])
def test_a_step_says_what_it_holds(kind: Any) -> None:
    narrow = plan(loss=LossSpec(kind=kind), dtype="bfloat16")
    target_step = roles.target_role(narrow, CPU)[1]
    drafter, draft_step = roles.drafter_role(narrow, CPU)
    per_slot = 1 if kind == "ce" else 2
    assert {name: len(tensors) for name, tensors in target_step.holds.items()} == {
        "inputs": 1,
        "features": 2 * per_slot,
    }
    trained = sum(p.requires_grad for p in drafter.parameters())
    assert {name: len(tensors) for name, tensors in draft_step.holds.items()} == {
        "features": 2 * per_slot,
        "tables": 2 if kind == "ce" else 3,
        "master_weights": trained,
        "optimizer_state": 2 * trained,
    }


# The naive ways


def test_the_naive_plan_runs_the_causal_lm_and_full_sequence_logits() -> None:
    loss = LossSpec(kind="kl", projection="full-sequence", chunked=False)
    naive = plan(target_forward="causal-lm", target_rows=0, loss=loss)
    target, target_step, _, draft_step = build(naive)
    assert isinstance(target_step, roles.BaselineTargetStep)
    assert isinstance(draft_step, roles.BaselineDraftStep)
    assert target.get_output_embeddings() is not None
    target_step()
    assert target_step.waiting is not None
    features_1TF, last_hidden_1TH = target_step.waiting
    fill(draft_step.slots, features_1TF[0], last_hidden_1TH[0])
    losses = [float(draft_step()) for _ in range(5)]
    assert losses[-1] < losses[0]


def test_the_naive_target_gives_the_features_of_the_body() -> None:
    naive = plan(target_forward="causal-lm", target_rows=0)
    target, step, _, _ = build(replace(naive, target_forward="body"))
    causal_lm, naive_step, _, _ = build(naive)
    target.body.load_state_dict(causal_lm.base_model.state_dict(), strict=False)  # all but the final norm
    step()
    naive_step()
    features_1TF, last_hidden_1TH = naive_step.waiting
    torch.testing.assert_close(step.slots[0].features_TF, features_1TF[0], atol=1e-5, rtol=0)
    torch.testing.assert_close(step.slots[0].last_hidden_TH, last_hidden_1TH[0], atol=1e-5, rtol=0)


# What is traced is what runs


def counted(function: Callable[..., Any], calls: list[tuple[Any, ...]]) -> Callable[..., Any]:
    def call(*args: Any, **kwargs: Any) -> Any:
        calls.append(args)
        return function(*args, **kwargs)

    return call


def test_the_engine_traces_the_functions_that_workers_run(monkeypatch: pytest.MonkeyPatch) -> None:
    assert vars(roles)["target_step"] is steps.target_step
    assert vars(roles)["draft_step"] is steps.draft_step
    target_calls: list[tuple[Any, ...]] = []
    draft_calls: list[tuple[Any, ...]] = []
    monkeypatch.setattr(roles, "target_step", counted(steps.target_step, target_calls))
    monkeypatch.setattr(roles, "draft_step", counted(steps.draft_step, draft_calls))
    trace_role(plan(), "target")
    trace_role(plan(), "drafter")
    ((target, row, _),) = target_calls
    ((drafter, _, batch, _, optimizer, settings),) = draft_calls
    assert isinstance(target, Target)
    assert isinstance(drafter, Drafter)
    assert isinstance(optimizer, MasterAdamW)
    assert row.input_ids_T.device.type == batch.block_ids_R.device.type == "meta"
    assert settings == steps.LossSettings(kind="kl", chunk_rows=None)


@pytest.mark.parametrize("role", ["target", "drafter"])
def test_a_traced_step_repeats_and_knows_every_value(role: Any) -> None:
    trace = trace_role(plan(), role)
    assert trace.steady is not None
    assert all(read.known for read in trace.value_reads)
    assert trace.untraced_ops == ()
