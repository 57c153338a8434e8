"""Build the drafter's attention masks from CPU integers.

Keys are `[context | block]`: T context rows, then the R rows of all blocks. A row sees two runs of keys:

    context   same document, strictly before the anchor, and within the window where the layer slides
    block     its own block: all of it, or up to itself where the layer is causal

A mask is thus four integers a row. From them comes a dense boolean mask for SDPA, or a flex attention
`BlockMask` whose tiles are counted from the ends of the runs: no [Q, KV] grid is ever made.

Shape suffixes: T context tokens, A anchors, B slots, R = A * B rows, S = T + R keys, I query tiles,
J key tiles.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TypeAlias

import torch
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask

from dflash_train.models.anchors import AnchoredBlocks

TILE = 128
"""Rows and columns of a flex attention tile."""

BACKENDS = ("flex", "sdpa")


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerPattern:
    """Say what one draft layer may see."""

    window: int | None = None
    """Keys further back than this from the query's position are hidden; None sees all."""
    causal: bool = False
    """True hides later slots of the block."""


@dataclass(frozen=True, slots=True, kw_only=True)
class VisibleRanges:
    """Hold the two runs of keys that each row sees; int32, stops exclusive, counted in S."""

    context_start_R: Tensor
    context_stop_R: Tensor
    block_start_R: Tensor
    block_stop_R: Tensor
    num_context: int

    @property
    def num_rows(self) -> int:
        """Count the query rows, R."""
        return self.context_start_R.numel()

    @property
    def num_keys(self) -> int:
        """Count the keys, S."""
        return self.num_context + self.num_rows

    def to(self, device: torch.device | str) -> VisibleRanges:
        """Copy to a device."""
        return VisibleRanges(
            context_start_R=self.context_start_R.to(device),
            context_stop_R=self.context_stop_R.to(device),
            block_start_R=self.block_start_R.to(device),
            block_stop_R=self.block_stop_R.to(device),
            num_context=self.num_context,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class FlexMask:
    """Pair a flex attention mask with the integers that its mask function reads."""

    ranges: VisibleRanges
    block_mask: BlockMask

    def to(self, device: torch.device | str) -> FlexMask:
        """Copy to a device, the integers of the mask function too."""
        ranges, block_mask = self.ranges.to(device), self.block_mask.to(device)
        block_mask.mask_mod = _mask_mod(ranges)
        return FlexMask(ranges=ranges, block_mask=block_mask)


AttentionMask: TypeAlias = Tensor | FlexMask


def visible_ranges(blocks: AnchoredBlocks, pattern: LayerPattern) -> VisibleRanges:
    """Compute what each row sees under a layer's pattern.

    The window counts from the query's own position (anchor + k), as transformers and z-lab's package do.
    Rows of blocks that are not valid see their own block only.
    """
    if pattern.window is not None and pattern.window < 1:
        raise ValueError(f"window must be at least 1, got {pattern.window}")
    size, num_anchors = blocks.block_size, blocks.anchors_A.numel()
    slot_B = torch.arange(size)
    start_AB = blocks.document_start_A[:, None].expand(-1, size)
    low_B, high_B = torch.zeros_like(slot_B), torch.full_like(slot_B, size)
    if pattern.window is not None:
        start_AB = torch.maximum(start_AB, blocks.anchors_A[:, None] + slot_B - pattern.window + 1)
        low_B = (slot_B - pattern.window + 1).clamp(min=0)
        high_B = (slot_B + pattern.window).clamp(max=size)
    if pattern.causal:
        high_B = slot_B + 1
    stop_AB = torch.where(blocks.valid_A, blocks.anchors_A, 0)[:, None].expand(-1, size)
    first_A1 = blocks.num_tokens + torch.arange(num_anchors)[:, None] * size
    return VisibleRanges(
        context_start_R=torch.minimum(start_AB, stop_AB).reshape(-1).to(torch.int32),
        context_stop_R=stop_AB.reshape(-1).to(torch.int32),
        block_start_R=(first_A1 + low_B).reshape(-1).to(torch.int32),
        block_stop_R=(first_A1 + high_B).reshape(-1).to(torch.int32),
        num_context=blocks.num_tokens,
    )


def dense_mask(ranges: VisibleRanges) -> Tensor:
    """Return a boolean mask for SDPA, [1, 1, R, S]; True is visible."""
    device = ranges.context_start_R.device
    rows_R1 = torch.arange(ranges.num_rows, device=device)[:, None]
    keys_S = torch.arange(ranges.num_keys, device=device)
    return _mask_mod(ranges)(rows_R1, rows_R1, rows_R1, keys_S)[None, None]


def flex_mask(ranges: VisibleRanges) -> FlexMask:
    """Return a flex attention mask with its sparse structure, on the CPU."""
    partial_IJ, full_IJ = visible_tiles(ranges)
    kv_num_blocks, kv_indices = _order_tiles(partial_IJ)
    full_kv_num_blocks, full_kv_indices = _order_tiles(full_IJ)
    q_num_blocks, q_indices = _order_tiles(partial_IJ.T)
    full_q_num_blocks, full_q_indices = _order_tiles(full_IJ.T)
    block_mask = BlockMask(
        seq_lengths=(ranges.num_rows, ranges.num_keys),
        kv_num_blocks=kv_num_blocks,
        kv_indices=kv_indices,
        full_kv_num_blocks=full_kv_num_blocks,
        full_kv_indices=full_kv_indices,
        q_num_blocks=q_num_blocks,
        q_indices=q_indices,
        full_q_num_blocks=full_q_num_blocks,
        full_q_indices=full_q_indices,
        BLOCK_SIZE=(TILE, TILE),
        mask_mod=_mask_mod(ranges),
    )
    return FlexMask(ranges=ranges, block_mask=block_mask)


def visible_tiles(ranges: VisibleRanges) -> tuple[Tensor, Tensor]:
    """Return which tiles are seen in part and which in full, two booleans [I, J].

    A tile is full where all its 128 rows see all its 128 keys. Its two runs never fill a tile together: the
    last context row lies before no anchor, so a gap parts them.
    """
    num_query_tiles, num_key_tiles = -(-ranges.num_rows // TILE), -(-ranges.num_keys // TILE)
    touched_IJ = torch.zeros((num_query_tiles, num_key_tiles + 1), dtype=torch.int32)
    filled_IJ = torch.zeros_like(touched_IJ)
    for start_R, stop_R in (
        (ranges.context_start_R, ranges.context_stop_R),
        (ranges.block_start_R, ranges.block_stop_R),
    ):
        seen_R = start_R < stop_R
        _count_runs(touched_IJ, start_R // TILE, (stop_R + TILE - 1) // TILE, seen_R)
        _count_runs(filled_IJ, (start_R + TILE - 1) // TILE, stop_R // TILE, seen_R)
    full_IJ = filled_IJ.cumsum(1)[:, :-1] == TILE
    return (touched_IJ.cumsum(1)[:, :-1] > 0) & ~full_IJ, full_IJ


def build_masks(
    blocks: AnchoredBlocks, patterns: Iterable[LayerPattern], backend: str
) -> dict[LayerPattern, AttentionMask]:
    """Build one mask for each distinct pattern, on the CPU, for the backend that the plan names."""
    if backend not in BACKENDS:
        raise ValueError(f"backend must be one of {', '.join(BACKENDS)}, got {backend!r}")
    build: Callable[[VisibleRanges], AttentionMask] = flex_mask if backend == "flex" else dense_mask
    return {pattern: build(visible_ranges(blocks, pattern)) for pattern in dict.fromkeys(patterns)}


def move_masks(
    masks: Mapping[LayerPattern, AttentionMask], device: torch.device | str
) -> dict[LayerPattern, AttentionMask]:
    """Copy masks to a device."""
    return {pattern: mask.to(device) for pattern, mask in masks.items()}


def _mask_mod(ranges: VisibleRanges) -> Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]:
    context_start_R, context_stop_R = ranges.context_start_R, ranges.context_stop_R
    block_start_R, block_stop_R = ranges.block_start_R, ranges.block_stop_R

    def sees(batch: Tensor, head: Tensor, row: Tensor, key: Tensor) -> Tensor:
        in_context = (key >= context_start_R[row]) & (key < context_stop_R[row])
        in_block = (key >= block_start_R[row]) & (key < block_stop_R[row])
        return in_context | in_block

    return sees


def _count_runs(diff_IJ: Tensor, first_R: Tensor, stop_R: Tensor, seen_R: Tensor) -> None:
    """Add one to every tile in [first, stop) of each row's query tile, as differences along J."""
    seen_R = seen_R & (first_R < stop_R)
    tile_R = torch.arange(seen_R.numel()) // TILE
    width = diff_IJ.shape[1]
    one_R = seen_R.to(torch.int32)
    diff_IJ.view(-1).index_add_(0, tile_R * width + first_R.clamp(max=width - 1), one_R)
    diff_IJ.view(-1).index_add_(0, tile_R * width + stop_R.clamp(max=width - 1), -one_R)


def _order_tiles(tiles_IJ: Tensor) -> tuple[Tensor, Tensor]:
    """Return each row's number of set tiles, [1, 1, I], and columns, set ones first, [1, 1, I, J]; int32."""
    order_IJ = torch.argsort(tiles_IJ.to(torch.int32), dim=1, descending=True, stable=True)
    return tiles_IJ.sum(1).to(torch.int32)[None, None], order_IJ.to(torch.int32).contiguous()[None, None]
