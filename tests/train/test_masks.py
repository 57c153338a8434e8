import pytest
import torch
from torch.nn.attention.flex_attention import _convert_mask_to_block_mask, _dense_to_ordered, flex_attention

from dflash_train.models.anchors import AnchoredBlocks, place_blocks
from dflash_train.models.masks import (
    FlexMask,
    LayerPattern,
    build_masks,
    dense_mask,
    flex_mask,
    move_masks,
    visible_ranges,
    visible_tiles,
)

PATTERNS = [
    LayerPattern(),
    LayerPattern(causal=True),
    LayerPattern(window=3, causal=True),
    LayerPattern(window=2),
    LayerPattern(window=150, causal=True),
]


def rows_by_hand(blocks: AnchoredBlocks, pattern: LayerPattern) -> torch.Tensor:
    """Decide every pair of query and key by the definition, one at a time."""
    size, total = blocks.block_size, blocks.num_tokens
    mask = torch.zeros(blocks.num_rows, total + blocks.num_rows, dtype=torch.bool)
    for block, anchor in enumerate(blocks.anchors_A.tolist()):
        start = int(blocks.document_start_A[block])
        for slot in range(size):
            for key in range(start, anchor if bool(blocks.valid_A[block]) else start):
                near = pattern.window is None or anchor + slot - key < pattern.window
                mask[block * size + slot, key] = near
            for key in range(size):
                near = pattern.window is None or abs(slot - key) < pattern.window
                past = not pattern.causal or key <= slot
                mask[block * size + slot, total + block * size + key] = near and past
    return mask


def two_documents() -> AnchoredBlocks:
    anchors = torch.tensor([0, 4, 7, 8, 12, 0])
    valid = torch.tensor([True] * 5 + [False])
    return place_blocks([7, 6], anchors, 4, num_tokens=15, valid_A=valid)


def long_row() -> AnchoredBlocks:
    anchors = torch.tensor([3, 130, 290, 299, 310, 420, 500, 640, 690, 699])
    return place_blocks([300, 400], anchors, 48)


@pytest.mark.parametrize("pattern", PATTERNS)
def test_dense_mask_follows_the_definition(pattern):
    blocks = two_documents()
    mask = dense_mask(visible_ranges(blocks, pattern))
    assert mask.shape == (1, 1, 24, 39)
    assert torch.equal(mask[0, 0], rows_by_hand(blocks, pattern))


def test_every_row_sees_something():
    for pattern in PATTERNS:
        assert dense_mask(visible_ranges(two_documents(), pattern)).any(-1).all()


@pytest.mark.parametrize("pattern", PATTERNS)
@pytest.mark.parametrize("blocks", [two_documents(), long_row()], ids=["short", "long"])
def test_tiles_are_those_of_the_dense_mask(pattern, blocks):
    ranges = visible_ranges(blocks, pattern)
    partial, full = _convert_mask_to_block_mask(dense_mask(ranges), 128, 128, separate_full_blocks=True)
    own_partial, own_full = visible_tiles(ranges)
    assert torch.equal(own_partial, partial[0, 0].bool())
    assert torch.equal(own_full, full[0, 0].bool())
    mask = flex_mask(ranges).block_mask
    for tiles, count, indices in (
        (partial, mask.kv_num_blocks, mask.kv_indices),
        (full, mask.full_kv_num_blocks, mask.full_kv_indices),
        (partial.mT, mask.q_num_blocks, mask.q_indices),
        (full.mT, mask.full_q_num_blocks, mask.full_q_indices),
    ):
        expected_count, expected_indices = _dense_to_ordered(tiles)
        assert torch.equal(count, expected_count)
        assert torch.equal(indices, expected_indices)


def test_long_contexts_have_full_tiles():
    blocks = place_blocks([1024], torch.full((8,), 1000), 16)
    partial, full = visible_tiles(visible_ranges(blocks, LayerPattern()))
    assert full.int().tolist() == [[1] * 7 + [0] * 2]
    assert partial.int().tolist() == [[0] * 7 + [1] * 2]


def test_blocks_longer_than_a_tile_fill_it():
    blocks = place_blocks([256], torch.tensor([0]), 256)
    _, full = visible_tiles(visible_ranges(blocks, LayerPattern()))
    assert full.int().tolist() == [[0, 0, 1, 1]] * 2


@pytest.mark.parametrize("pattern", PATTERNS)
@torch.no_grad()
def test_flex_equals_dense_attention(pattern):
    blocks = long_row()
    ranges = visible_ranges(blocks, pattern)
    generator = torch.Generator().manual_seed(0)
    q = torch.randn(1, 4, ranges.num_rows, 16, generator=generator)
    k = torch.randn(1, 2, ranges.num_keys, 16, generator=generator)
    v = torch.randn(1, 2, ranges.num_keys, 16, generator=generator)
    out = flex_attention(q, k, v, block_mask=flex_mask(ranges).block_mask, enable_gqa=True)
    expected = torch.nn.functional.scaled_dot_product_attention(
        q, k, v, attn_mask=dense_mask(ranges), enable_gqa=True
    )
    torch.testing.assert_close(out, expected, atol=2e-6, rtol=0)


def test_masks_are_shared_by_pattern_and_named_by_the_plan():
    sliding = LayerPattern(window=3, causal=True)
    masks = build_masks(two_documents(), [sliding, sliding, LayerPattern()], "sdpa")
    assert list(masks) == [sliding, LayerPattern()]
    assert all(isinstance(mask, torch.Tensor) for mask in masks.values())
    flex = build_masks(two_documents(), [sliding], "flex")
    assert isinstance(flex[sliding], FlexMask)
    with pytest.raises(ValueError, match="flex, sdpa"):
        build_masks(two_documents(), [sliding], "eager")


def test_moved_masks_take_their_mask_function_along():
    masks = move_masks(build_masks(two_documents(), [LayerPattern()], "flex"), "meta")
    mask = masks[LayerPattern()]
    assert isinstance(mask, FlexMask)
    index = torch.zeros(2, dtype=torch.int64, device="meta")
    assert mask.block_mask.mask_mod(index, index, index, index).device.type == "meta"
    assert mask.block_mask.kv_indices.device.type == "meta"
    assert mask.block_mask.seq_lengths == (24, 39)


def test_the_founding_row_needs_no_grid():
    blocks = place_blocks([4096] * 16, torch.arange(512) * 128, 16)
    mask = flex_mask(visible_ranges(blocks, LayerPattern())).block_mask
    assert mask.kv_indices.shape == (1, 1, 64, 576)
    assert sum(t.nbytes for t in (mask.kv_indices, mask.full_kv_indices)) == 2 * 64 * 576 * 4


def test_window_must_be_positive():
    with pytest.raises(ValueError, match="at least 1"):
        visible_ranges(two_documents(), LayerPattern(window=0))
