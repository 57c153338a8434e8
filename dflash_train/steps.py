"""Run one step of the target or of the drafter on a prepared batch.

    TargetBatch --target_step--> FeatureSlot --draft_step (with a DraftBatch)--> StepResult

Steps are plain functions that workers and memory engines call alike. They read nothing back from the device:
every shape comes from the CPU, where batches are prepared, and results are device scalars.

Shape suffixes: T tokens of the packed row, F = K * H features, H hidden size, A anchors, B slots,
R = A * B block rows, P = A * (B - 1) predicting rows, S = T + R.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.profiler import record_function

from dflash_train.models.anchors import (
    AnchoredBlocks,
    block_labels,
    block_positions,
    block_token_ids,
    context_positions,
    default_gamma,
    drop_first_slots,
    place_blocks,
    slot_weights,
    teacher_indices,
)
from dflash_train.models.drafter import Drafter
from dflash_train.models.loss import LossResult, frozen_head_loss
from dflash_train.models.masks import AttentionMask, LayerPattern, build_masks, move_masks
from dflash_train.models.tables import FrozenTables
from dflash_train.models.target import SubRow, Target, split_sub_rows
from dflash_train.optim import StepOptimizer


@dataclass(frozen=True, slots=True, kw_only=True)
class FeatureSlot:
    """Hold one packed row's features, preallocated."""

    features_TF: Tensor
    last_hidden_TH: Tensor | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetBatch:
    """Hold a packed row for the target."""

    input_ids_T: Tensor
    sub_rows: tuple[SubRow, ...]

    def to(self, device: torch.device | str) -> TargetBatch:
        """Copy to a device."""
        return replace(self, input_ids_T=self.input_ids_T.to(device))


@dataclass(frozen=True, slots=True, kw_only=True)
class DraftBatch:
    """Hold what a drafter needs beside the features."""

    block_ids_R: Tensor
    positions_S: Tensor
    labels_P: Tensor
    weights_P: Tensor
    teacher_rows_P: Tensor
    """Rows of the last hidden state whose logits predict the labels."""
    masks: Mapping[LayerPattern, AttentionMask]
    block_size: int

    def to(self, device: torch.device | str) -> DraftBatch:
        """Copy to a device."""
        return DraftBatch(
            block_ids_R=self.block_ids_R.to(device),
            positions_S=self.positions_S.to(device),
            labels_P=self.labels_P.to(device),
            weights_P=self.weights_P.to(device),
            teacher_rows_P=self.teacher_rows_P.to(device),
            masks=move_masks(self.masks, device),
            block_size=self.block_size,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class LossSettings:
    """Choose the loss: kind "ce", "ce_teacher" or "kl"; chunk_rows None sizes chunks by the vocabulary."""

    kind: str = "ce"
    chunk_rows: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class StepResult:
    """Hold a step's outcome as device tensors."""

    loss: Tensor
    weight_sum: Tensor
    grad_norm: Tensor
    correct_b: Tensor
    """Right tokens at slots 1 .. B-1, among supervised rows, [B - 1]; int64."""
    supervised_b: Tensor
    """Supervised rows at slots 1 .. B-1, [B - 1]; int64."""


def allocate_slot(
    num_tokens: int,
    num_features: int,
    hidden_size: int,
    *,
    dtype: torch.dtype,
    device: torch.device | str,
    with_last_hidden: bool = False,
) -> FeatureSlot:
    """Allocate a slot for packed rows of num_tokens, [T, K * H], and [T, H] if asked for."""
    features_TF = torch.empty((num_tokens, num_features * hidden_size), dtype=dtype, device=device)
    last_hidden_TH = features_TF.new_empty((num_tokens, hidden_size)) if with_last_hidden else None
    return FeatureSlot(features_TF=features_TF, last_hidden_TH=last_hidden_TH)


def prepare_target_batch(
    input_ids_T: Tensor, document_lengths: Sequence[int], target_rows: int
) -> TargetBatch:
    """Cut a packed row into the sub-rows that the target runs."""
    return TargetBatch(input_ids_T=input_ids_T, sub_rows=tuple(split_sub_rows(document_lengths, target_rows)))


def prepare_draft_batch(
    input_ids_T: Tensor,
    document_lengths: Sequence[int],
    blocks: AnchoredBlocks,
    *,
    drafter_patterns: Sequence[LayerPattern],
    mask_token_id: int,
    backend: str,
    gamma: float | None = None,
    loss_mask_T: Tensor | None = None,
) -> DraftBatch:
    """Prepare ids, positions, labels, weights and masks on the CPU; gamma None follows the block size."""
    size = blocks.block_size
    labels_R, supervised_R = block_labels(input_ids_T, blocks, loss_mask_T)
    decay_B = slot_weights(size, default_gamma(size) if gamma is None else gamma)
    weights_R = torch.where(supervised_R, decay_B.repeat(blocks.anchors_A.numel()), 0.0)
    index_R = (blocks.anchors_A[:, None] + torch.arange(size)).reshape(-1)
    teacher_rows_R = teacher_indices(index_R.clamp(max=blocks.num_tokens - 1), blocks.num_tokens)
    context_T = context_positions(document_lengths, blocks.num_tokens)
    return DraftBatch(
        block_ids_R=block_token_ids(input_ids_T, blocks, mask_token_id),
        positions_S=torch.cat((context_T, block_positions(blocks))),
        labels_P=drop_first_slots(labels_R, size),
        weights_P=drop_first_slots(weights_R, size),
        teacher_rows_P=drop_first_slots(teacher_rows_R, size),
        masks=build_masks(blocks, drafter_patterns, backend),
        block_size=size,
    )


def target_step(target: Target, batch: TargetBatch, slot: FeatureSlot) -> None:
    """Fill a slot with a packed row's features by sub-rows; zero the rows behind the last document."""
    stop = 0
    for sub_row in batch.sub_rows:
        stop = sub_row.start + sub_row.num_tokens
        rows = slice(sub_row.start, stop)
        ids_nL = batch.input_ids_T[rows].view(sub_row.num_documents, sub_row.length)
        last_hidden = None if slot.last_hidden_TH is None else slot.last_hidden_TH[rows]
        target.write_features(ids_nL, slot.features_TF[rows], last_hidden)
    slot.features_TF[stop:].zero_()
    if slot.last_hidden_TH is not None:
        slot.last_hidden_TH[stop:].zero_()


def draft_step(
    drafter: Drafter,
    tables: FrozenTables,
    batch: DraftBatch,
    slot: FeatureSlot,
    optimizer: StepOptimizer,
    settings: LossSettings,
    *,
    lr: float,
) -> StepResult:
    """Run forward, loss, backward, clipping and the optimizer on one packed row."""
    with record_function("phase:forward"):
        result = draft_loss(drafter, tables, batch, slot, settings)
    result.loss.backward()
    with record_function("phase:optimizer"):
        grad_norm = optimizer.step(lr)
    supervised_Ab = (batch.weights_P > 0).view(-1, batch.block_size - 1)
    correct_Ab = result.correct_P.view(-1, batch.block_size - 1) & supervised_Ab
    return StepResult(
        loss=result.loss.detach(),
        weight_sum=batch.weights_P.sum(),
        grad_norm=grad_norm,
        correct_b=correct_Ab.sum(0),
        supervised_b=supervised_Ab.sum(0),
    )


def draft_loss(
    drafter: Drafter, tables: FrozenTables, batch: DraftBatch, slot: FeatureSlot, settings: LossSettings
) -> LossResult:
    """Run the drafter forward and compute its loss; the graph hangs on the loss alone."""
    hidden_1RH = drafter(
        tables.embed(batch.block_ids_R)[None], slot.features_TF[None], batch.positions_S[None], batch.masks
    )
    teacher_PH = None if settings.kind == "ce" else teacher_hidden(tables, slot, batch.teacher_rows_P)
    return frozen_head_loss(
        drop_first_slots(hidden_1RH[0], batch.block_size),
        tables.head_VH,
        batch.weights_P,
        kind=settings.kind,
        labels_P=batch.labels_P,
        teacher_hidden_PH=teacher_PH,
        chunk_rows=settings.chunk_rows,
    )


@torch.no_grad()
def teacher_hidden(tables: FrozenTables, slot: FeatureSlot, rows_P: Tensor) -> Tensor:
    """Select the teacher's rows, then normalise them, [P, H].

    Raises ValueError without a last hidden state or final norm.
    """
    if slot.last_hidden_TH is None or tables.final_norm is None:
        raise ValueError("a loss against the teacher needs the last hidden state and the final norm")
    normed: Tensor = tables.final_norm(slot.last_hidden_TH.index_select(0, rows_P))
    return normed


def synthetic_draft_batch(
    token_budget: int,
    num_anchors: int,
    block_size: int,
    document_length: int,
    device: torch.device | str,
    *,
    drafter_patterns: Sequence[LayerPattern] = (LayerPattern(),),
    vocab_size: int = 1000,
    mask_token_id: int = 0,
    backend: str = "sdpa",
    gamma: float | None = None,
) -> DraftBatch:
    """Prepare a batch of given sizes: documents of one length, anchors spread evenly over the row."""
    lengths = synthetic_document_lengths(token_budget, document_length)
    input_ids_T = torch.arange(token_budget) % vocab_size
    anchors_A = torch.arange(num_anchors) * token_budget // num_anchors
    blocks = place_blocks(lengths, anchors_A, block_size)
    batch = prepare_draft_batch(
        input_ids_T,
        lengths,
        blocks,
        drafter_patterns=drafter_patterns,
        mask_token_id=mask_token_id,
        backend=backend,
        gamma=gamma,
    )
    return batch.to(device)


def synthetic_target_batch(
    token_budget: int,
    document_length: int,
    target_rows: int,
    device: torch.device | str,
    *,
    vocab_size: int = 1000,
) -> TargetBatch:
    """Prepare a packed row of given sizes for the target."""
    lengths = synthetic_document_lengths(token_budget, document_length)
    return prepare_target_batch(torch.arange(token_budget) % vocab_size, lengths, target_rows).to(device)


def synthetic_document_lengths(token_budget: int, document_length: int) -> list[int]:
    """Fill a row with documents of one length; the last takes what is left."""
    if token_budget < 1 or document_length < 1:
        raise ValueError(f"sizes must be positive, got {token_budget} and {document_length}")
    full, rest = divmod(token_budget, document_length)
    return [document_length] * full + ([rest] if rest else [])
