"""Build what one GPU runs, from a plan: its module and its step.

    RunPlan --target_role--> (Target, step)      RunPlan --drafter_role--> (Drafter, step)

Memory engines name these functions and trace the steps; each step is the one of `steps` on a prepared batch.
A plan that asks for the naive ways (causal LM in the targets, verifier logits of every row) gets those of
`baseline`, for forecasts and comparisons.

Shape suffixes: T tokens of the packed row, F = K * H features, H hidden size.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.profiler import record_function
from transformers import AutoConfig, AutoModelForCausalLM

from dflash_doctor.records.plan import RunPlan
from dflash_train.baseline import baseline_draft_step, baseline_target_features
from dflash_train.models.draft_config import draft_config
from dflash_train.models.drafter import Drafter
from dflash_train.models.norm import RMSNorm
from dflash_train.models.tables import FrozenTables
from dflash_train.models.target import Target, build_target, target_layer_ids
from dflash_train.optim import MasterAdamW, PlainOptimizer
from dflash_train.steps import (
    DraftBatch,
    FeatureSlot,
    LossSettings,
    StepResult,
    TargetBatch,
    allocate_slot,
    draft_step,
    synthetic_draft_batch,
    synthetic_target_batch,
    target_step,
)

DEFAULT_NUM_FEATURES = 5
CLIP_NORM = 1.0
FORECAST_LR = 1e-4


class TargetStep:
    """Fill the slots in turn, each with one packed row's features."""

    def __init__(self, target: Target, batch: TargetBatch, slots: Sequence[FeatureSlot]) -> None:
        self.target, self.batch, self.slots = target, batch, slots
        self.next_slot = 0
        self.holds: Mapping[str, Sequence[Tensor]] = {
            "inputs": [batch.input_ids_T],
            "features": slot_tensors(slots),
        }

    def __call__(self) -> None:
        """Run one packed row."""
        slot = self.slots[self.next_slot]
        self.next_slot = (self.next_slot + 1) % len(self.slots)
        with record_function("phase:forward"):
            target_step(self.target, self.batch, slot)


class BaselineTargetStep:
    """Run the causal LM on the whole row; the features wait on the device until they are fetched."""

    def __init__(self, causal_lm: nn.Module, input_ids_1T: Tensor, layer_ids: Sequence[int]) -> None:
        self.causal_lm, self.input_ids_1T, self.layer_ids = causal_lm, input_ids_1T, layer_ids
        self.waiting: tuple[Tensor, Tensor] | None = None
        self.holds: Mapping[str, Sequence[Tensor]] = {"inputs": [input_ids_1T]}

    def __call__(self) -> None:
        """Run one packed row."""
        with record_function("phase:forward"):
            self.waiting = baseline_target_features(self.causal_lm, self.input_ids_1T, self.layer_ids)


class DraftStep:
    """Train the drafter on the slots in turn."""

    def __init__(
        self, drafter: Drafter, tables: FrozenTables, slots: Sequence[FeatureSlot], plan: RunPlan
    ) -> None:
        self.drafter, self.tables, self.slots = drafter, tables, slots
        self.next_slot = 0
        self.batch = draft_batch(plan, drafter, tables)
        self.optimizer = build_optimizer(plan, drafter)
        self.settings = LossSettings(kind=loss_kind(plan), chunk_rows=chunk_rows(plan))
        self.holds: Mapping[str, Sequence[Tensor]] = {
            "features": slot_tensors(slots),
            "tables": table_tensors(tables),
            **optimizer_tensors(self.optimizer),
        }

    def __call__(self) -> StepResult:
        """Run one packed row."""
        slot = self.slots[self.next_slot]
        self.next_slot = (self.next_slot + 1) % len(self.slots)
        return draft_step(
            self.drafter, self.tables, self.batch, slot, self.optimizer, self.settings, lr=FORECAST_LR
        )


class BaselineDraftStep:
    """Train the drafter with verifier logits of every row, on the slots in turn."""

    def __init__(
        self, drafter: Drafter, tables: FrozenTables, slots: Sequence[FeatureSlot], plan: RunPlan
    ) -> None:
        self.drafter, self.tables, self.slots = drafter, tables, slots
        self.next_slot = 0
        self.batch = draft_batch(plan, drafter, tables)
        spread_A = torch.arange(plan.max_anchors) * (plan.token_budget // plan.max_anchors - 1)
        self.anchors_A = spread_A.clamp(min=0).to(tables.head_VH.device)
        self.optimizer = PlainOptimizer(drafter.parameters(), plan.optimizer)
        self.holds: Mapping[str, Sequence[Tensor]] = {
            "features": slot_tensors(slots),
            "tables": table_tensors(tables),
            "master_weights": self.optimizer.masters,
        }

    def __call__(self) -> Tensor:
        """Run one packed row."""
        slot = self.slots[self.next_slot]
        self.next_slot = (self.next_slot + 1) % len(self.slots)
        return baseline_draft_step(
            self.drafter, self.tables, self.batch, slot, self.anchors_A, self.optimizer, lr=FORECAST_LR
        )


def build_optimizer(plan: RunPlan, drafter: Drafter) -> MasterAdamW | PlainOptimizer:
    """Build the plan's optimizer, clipping at norm 1."""
    if plan.optimizer == "adamw-fused":
        return MasterAdamW(drafter.named_parameters(), clip_norm=CLIP_NORM)
    return PlainOptimizer(drafter.parameters(), plan.optimizer, clip_norm=CLIP_NORM)


def optimizer_tensors(optimizer: MasterAdamW | PlainOptimizer) -> dict[str, list[Tensor]]:
    """List what an optimizer holds from the start, by kind."""
    if isinstance(optimizer, PlainOptimizer):
        return {"master_weights": [*optimizer.masters]}
    return {
        "master_weights": list(optimizer.masters.values()),
        "optimizer_state": [*optimizer.exp_avgs.values(), *optimizer.exp_avg_sqs.values()],
    }


def draft_batch(plan: RunPlan, drafter: Drafter, tables: FrozenTables) -> DraftBatch:
    """Prepare the drafter's synthetic row on the tables' device."""
    return synthetic_draft_batch(
        plan.token_budget,
        plan.max_anchors,
        plan.draft.block_size,
        document_tokens(plan),
        tables.head_VH.device,
        drafter_patterns=drafter.patterns,
        vocab_size=tables.head_VH.shape[0],
        backend=plan.draft.attention,
        gamma=plan.loss.gamma,
    )


def target_role(plan: RunPlan, device: torch.device) -> tuple[nn.Module, TargetStep | BaselineTargetStep]:
    """Build a target and its step on a synthetic row of the plan's size."""
    config = target_config(plan)
    dtype = getattr(torch, plan.dtype)
    ids = layer_ids(plan, config)
    if plan.target_forward == "causal-lm":
        return _baseline_target(plan, config, ids, device)
    target = build_target(
        config,
        ids,
        dtype=dtype,
        device=device,
        attention=plan.attention,
        with_last_hidden=needs_last_hidden(plan),
    )
    slots = allocate_slots(plan, config, len(ids), device)
    batch = synthetic_target_batch(
        plan.token_budget, document_tokens(plan), plan.target_rows, device, vocab_size=config.vocab_size
    )
    return target, TargetStep(target, batch, slots)


def _baseline_target(
    plan: RunPlan, config: Any, ids: Sequence[int], device: torch.device
) -> tuple[nn.Module, BaselineTargetStep]:
    with torch.device(device):
        model = AutoModelForCausalLM.from_config(
            config, dtype=getattr(torch, plan.dtype), attn_implementation=plan.attention
        )
    model = model.eval().requires_grad_(False)
    input_ids_1T = (torch.arange(plan.token_budget) % config.vocab_size)[None].to(device)
    return model, BaselineTargetStep(model, input_ids_1T, ids)


def drafter_role(plan: RunPlan, device: torch.device) -> tuple[nn.Module, DraftStep | BaselineDraftStep]:
    """Build a drafter, the tables that it borrows, its slots, optimizer and step."""
    config = target_config(plan)
    ids = layer_ids(plan, config)
    dtype = getattr(torch, plan.dtype)
    drafter = build_drafter(plan, config, ids, device)
    embedding_VH = torch.empty((config.vocab_size, config.hidden_size), dtype=dtype, device=device)
    tied = bool(getattr(config, "tie_word_embeddings", False))
    head_VH = embedding_VH if tied else torch.empty_like(embedding_VH)
    norm = final_norm(config, dtype, device) if needs_last_hidden(plan) else None
    tables = FrozenTables(embedding_VH=embedding_VH, head_VH=head_VH, final_norm=norm)
    slots = allocate_slots(plan, config, len(ids), device)
    step_type = BaselineDraftStep if plan.loss.projection == "full-sequence" else DraftStep
    return drafter, step_type(drafter, tables, slots, plan)


def build_drafter(plan: RunPlan, config: Any, ids: Sequence[int], device: torch.device) -> Drafter:
    """Build the plan's drafter for a target config."""
    spec = plan.draft
    drafter_config = draft_config(
        config,
        target_layer_ids=ids,
        mask_token_id=spec.mask_token_id or 0,
        num_layers=spec.num_layers,
        block_size=spec.block_size,
        intermediate_size=spec.intermediate_size,
        num_attention_heads=spec.num_attention_heads,
        num_key_value_heads=spec.num_key_value_heads,
        head_dim=spec.head_dim,
        layer_types=spec.layer_types,
        sliding_window=spec.sliding_window,
    )
    return Drafter(
        drafter_config, device=device, dtype=getattr(torch, plan.dtype), recompute=plan.recompute == "on"
    )


def target_config(plan: RunPlan) -> Any:
    """Make the target's transformers config."""
    fields = dict(plan.model.config)
    return AutoConfig.for_model(str(fields.pop("model_type")), **fields).get_text_config()


def layer_ids(plan: RunPlan, config: Any) -> tuple[int, ...]:
    """Take the plan's feature layers, or spread five over the target."""
    return plan.draft.layer_ids or target_layer_ids(config.num_hidden_layers, DEFAULT_NUM_FEATURES)


def document_tokens(plan: RunPlan) -> int:
    """Give the longest document: the plan's, or one sub-row, or the whole row."""
    longest = plan.document_tokens or plan.target_rows or plan.token_budget
    return min(longest, plan.token_budget)


def needs_last_hidden(plan: RunPlan) -> bool:
    """Say whether the loss compares with the teacher's logits."""
    return plan.loss.kind != "ce" or plan.loss.projection == "full-sequence"


def loss_kind(plan: RunPlan) -> str:
    """Name the loss as `frozen_head_loss` does."""
    return plan.loss.kind.replace("-", "_")


def chunk_rows(plan: RunPlan) -> int | None:
    """Give the rows of a chunk of the loss: all rows where the plan wants one piece."""
    return plan.loss.chunk_rows if plan.loss.chunked else plan.max_anchors * plan.draft.block_size


def allocate_slots(
    plan: RunPlan, config: Any, num_features: int, device: torch.device
) -> tuple[FeatureSlot, ...]:
    """Allocate the feature slots in flight on one device."""
    return tuple(
        allocate_slot(
            plan.token_budget,
            num_features,
            config.hidden_size,
            dtype=getattr(torch, plan.dtype),
            device=device,
            with_last_hidden=needs_last_hidden(plan),
        )
        for _ in range(plan.channel_slots)
    )


def final_norm(config: Any, dtype: torch.dtype, device: torch.device) -> nn.Module:
    """Build a norm of the size of the target's final one, for forecasts."""
    eps: Any = getattr(config, "rms_norm_eps", None) or getattr(config, "layer_norm_epsilon", 1e-6)
    return RMSNorm(config.hidden_size, eps, device=device, dtype=dtype).requires_grad_(False)


def slot_tensors(slots: Sequence[FeatureSlot]) -> list[Tensor]:
    """List the tensors of slots."""
    tensors = [slot.features_TF for slot in slots]
    return tensors + [slot.last_hidden_TH for slot in slots if slot.last_hidden_TH is not None]


def table_tensors(tables: FrozenTables) -> list[Tensor]:
    """List the tensors of the tables."""
    norm = [] if tables.final_norm is None else list(tables.final_norm.parameters())
    return [tables.embedding_VH, tables.head_VH, *norm]
