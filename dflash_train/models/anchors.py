"""Say where blocks lie in a packed row, and what each of their slots predicts.

Everything here runs on the CPU, before a step: no shape of a step comes from device data.
A block is `[anchor, MASK x (B - 1)]`; slot k predicts the token at anchor + k.

Shape suffixes: T tokens of the packed row, A anchors, B slots of a block, R = A * B rows,
P = A * (B - 1) predicting rows (all slots but the first of each block).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class AnchoredBlocks:
    """Describe the blocks of one packed row by CPU integers."""

    anchors_A: Tensor
    """Anchor positions in the packed row; int64."""
    valid_A: Tensor
    """False where an anchor only fills up the row of anchors; bool."""
    document_start_A: Tensor
    """First position of each anchor's document; int64."""
    document_stop_A: Tensor
    """Position after the last token of each anchor's document; int64."""
    block_size: int
    num_tokens: int

    @property
    def num_rows(self) -> int:
        """Count the rows of all blocks, R = A * B."""
        return self.anchors_A.numel() * self.block_size


def get_base_indices_for_anchored_blocks(
    anchor_positions: Tensor, block_size: int, total_seq_len: int
) -> Tensor:
    """Return the row positions that the slots of all blocks stand at, flattened.

    Args: anchor_positions [A] or [1, A], integers. Returns [A * block_size], int64, on the same device.
    Raises ValueError for another shape or dtype, for block_size < 1, and, for anchors on the CPU, where a
    block leaves [0, total_seq_len) (device anchors are not read back).
    """
    if anchor_positions.dim() == 2 and anchor_positions.shape[0] == 1:
        anchor_positions = anchor_positions[0]
    if anchor_positions.dim() != 1:
        raise ValueError(f"anchor_positions must be [A] or [1, A], got {list(anchor_positions.shape)}")
    if anchor_positions.dtype.is_floating_point or anchor_positions.dtype in (torch.bool, torch.complex64):
        raise ValueError(f"anchor_positions must be integers, got {anchor_positions.dtype}")
    if block_size < 1:
        raise ValueError(f"block_size must be at least 1, got {block_size}")
    anchors_A = anchor_positions.to(torch.int64)
    if anchors_A.device.type == "cpu" and anchors_A.numel():
        lowest, highest = int(anchors_A.min()), int(anchors_A.max())
        if lowest < 0 or highest + block_size > total_seq_len:
            raise ValueError(
                f"blocks of {block_size} at anchors {lowest}..{highest} leave the row of "
                f"{total_seq_len} tokens"
            )
    return (anchors_A[:, None] + torch.arange(block_size, device=anchors_A.device)).reshape(-1)


def place_blocks(
    document_lengths: Sequence[int],
    anchors_A: Tensor,
    block_size: int,
    *,
    num_tokens: int | None = None,
    valid_A: Tensor | None = None,
) -> AnchoredBlocks:
    """Find each anchor's document in a packed row.

    num_tokens is the length of the row; it may exceed the documents' sum by padding. Raises ValueError for
    empty documents, documents longer than the row, and valid anchors outside every document.
    """
    if not document_lengths or min(document_lengths) < 1:
        raise ValueError("document lengths must be positive, and there must be at least one")
    if block_size < 1:
        raise ValueError(f"block_size must be at least 1, got {block_size}")
    total = sum(document_lengths)
    num_tokens = total if num_tokens is None else num_tokens
    if total > num_tokens:
        raise ValueError(f"documents of {total} tokens exceed the row of {num_tokens}")
    anchors_A = anchors_A.to(device="cpu", dtype=torch.int64).reshape(-1)
    valid_A = torch.ones_like(anchors_A, dtype=torch.bool) if valid_A is None else valid_A.reshape(-1).cpu()
    if valid_A.shape != anchors_A.shape:
        raise ValueError(f"{anchors_A.numel()} anchors but {valid_A.numel()} valid flags")
    chosen = anchors_A[valid_A]
    if chosen.numel() and (int(chosen.min()) < 0 or int(chosen.max()) >= total):
        raise ValueError(f"anchors {int(chosen.min())}..{int(chosen.max())} lie outside [0, {total})")
    anchors_A = torch.where(valid_A, anchors_A, 0)
    lengths_D = torch.tensor(document_lengths, dtype=torch.int64)
    stops_D = lengths_D.cumsum(0)
    document_A = torch.searchsorted(stops_D, anchors_A, right=True)
    return AnchoredBlocks(
        anchors_A=anchors_A,
        valid_A=valid_A,
        document_start_A=(stops_D - lengths_D)[document_A],
        document_stop_A=stops_D[document_A],
        block_size=block_size,
        num_tokens=num_tokens,
    )


def context_positions(document_lengths: Sequence[int], num_tokens: int) -> Tensor:
    """Return positions that restart with each document, [T]; padding behind the last one restarts too."""
    padding = num_tokens - sum(document_lengths)
    if padding < 0:
        raise ValueError(f"documents exceed the row of {num_tokens} tokens by {-padding}")
    lengths = torch.tensor([*document_lengths, padding], dtype=torch.int64)
    return torch.arange(num_tokens) - torch.repeat_interleave(lengths.cumsum(0) - lengths, lengths)


def block_positions(blocks: AnchoredBlocks) -> Tensor:
    """Return each slot's position within its document, [R]; it goes on past the document's end."""
    start_A = blocks.anchors_A - blocks.document_start_A
    return (start_A[:, None] + torch.arange(blocks.block_size)).reshape(-1)


def block_token_ids(input_ids_T: Tensor, blocks: AnchoredBlocks, mask_token_id: int) -> Tensor:
    """Return what the drafter reads, [R]: each anchor's token, then mask tokens."""
    ids_AB = torch.full((blocks.anchors_A.numel(), blocks.block_size), mask_token_id, dtype=torch.int64)
    ids_AB[:, 0] = input_ids_T[blocks.anchors_A]
    return ids_AB.reshape(-1)


def block_labels(
    input_ids_T: Tensor, blocks: AnchoredBlocks, loss_mask_T: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Return each slot's token and whether it is supervised, both [R].

    Not supervised: slot 0, slots past the end of their document, blocks that are not valid, and tokens that
    loss_mask_T (bool or 0/1) leaves out. Their labels are 0.
    """
    slot_B = torch.arange(blocks.block_size)
    index_AB = blocks.anchors_A[:, None] + slot_B
    supervised_AB = (index_AB < blocks.document_stop_A[:, None]) & blocks.valid_A[:, None] & (slot_B > 0)
    index_AB = index_AB.clamp(max=blocks.num_tokens - 1)
    if loss_mask_T is not None:
        supervised_AB = supervised_AB & loss_mask_T.to(torch.bool)[index_AB]
    labels_AB = torch.where(supervised_AB, input_ids_T[index_AB], 0)
    return labels_AB.reshape(-1), supervised_AB.reshape(-1)


def teacher_indices(indices_R: Tensor, num_tokens: int) -> Tensor:
    """Return the rows whose logits predict the tokens at indices_R, [R].

    Projecting all rows, rolling them by one and indexing gives the same as projecting these; row 0 takes the
    last one, as the roll does.
    """
    return (indices_R - 1) % num_tokens


def default_gamma(block_size: int) -> int:
    """Return the decay of the loss weights: 7 for blocks of 16, 5 for 10, 4 for 8 (DFlash, section 4)."""
    return round(1 + 3 * block_size / 8)


def slot_weights(block_size: int, gamma: float) -> Tensor:
    """Return exp(-(k - 1) / gamma) for slots k = 1 .. B-1, and 0 for slot 0, [B], float32."""
    if gamma <= 0:
        raise ValueError(f"gamma must be positive, got {gamma}")
    return torch.tensor([0.0] + [math.exp(-(k - 1) / gamma) for k in range(1, block_size)])


def drop_first_slots(rows_R: Tensor, block_size: int) -> Tensor:
    """Keep the predicting slots of each block: [R, ...] -> [P, ...]."""
    rows_AB = rows_R.view(-1, block_size, *rows_R.shape[1:])
    return rows_AB[:, 1:].flatten(0, 1)
