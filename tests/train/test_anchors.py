import math

import pytest
import torch

from dflash_train.models.anchors import (
    block_labels,
    block_positions,
    block_token_ids,
    context_positions,
    default_gamma,
    drop_first_slots,
    get_base_indices_for_anchored_blocks,
    place_blocks,
    slot_weights,
    teacher_indices,
)


def test_base_indices_of_flat_and_batched_anchors():
    expected = [0, 1, 2, 5, 6, 7]
    assert get_base_indices_for_anchored_blocks(torch.tensor([0, 5]), 3, 8).tolist() == expected
    batched = get_base_indices_for_anchored_blocks(torch.tensor([[0, 5]], dtype=torch.int32), 3, 8)
    assert batched.tolist() == expected
    assert batched.dtype == torch.int64


def test_base_indices_of_no_anchors():
    assert get_base_indices_for_anchored_blocks(torch.empty(0, dtype=torch.int64), 3, 8).shape == (0,)


@pytest.mark.parametrize(
    ("anchors", "block_size", "total", "words"),
    [
        (torch.tensor([-1, 2]), 3, 8, "leave the row of 8 tokens"),
        (torch.tensor([0, 6]), 3, 8, "blocks of 3 at anchors 0..6"),
        (torch.tensor([[0], [1]]), 3, 8, r"got \[2, 1\]"),
        (torch.tensor(3), 3, 8, r"got \[\]"),
        (torch.tensor([0.0]), 3, 8, "must be integers"),
        (torch.tensor([True]), 3, 8, "must be integers"),
        (torch.tensor([0]), 0, 8, "at least 1"),
    ],
)
def test_base_indices_refuse_what_leaves_the_row(anchors, block_size, total, words):
    with pytest.raises(ValueError, match=words):
        get_base_indices_for_anchored_blocks(anchors, block_size, total)


def test_base_indices_stay_on_meta():
    anchors = torch.empty(512, dtype=torch.int64, device="meta")
    indices = get_base_indices_for_anchored_blocks(anchors, 16, 65536)
    assert (indices.shape, indices.device.type) == ((8192,), "meta")


def test_place_blocks_finds_each_anchors_document():
    blocks = place_blocks([4, 1, 5], torch.tensor([0, 3, 4, 5, 9]), 4)
    assert blocks.document_start_A.tolist() == [0, 0, 4, 5, 5]
    assert blocks.document_stop_A.tolist() == [4, 4, 5, 10, 10]
    assert (blocks.num_tokens, blocks.num_rows) == (10, 20)


def test_place_blocks_moves_invalid_anchors_to_zero():
    blocks = place_blocks([4], torch.tensor([2, 99]), 2, valid_A=torch.tensor([True, False]), num_tokens=6)
    assert blocks.anchors_A.tolist() == [2, 0]
    assert blocks.num_tokens == 6


@pytest.mark.parametrize(
    ("lengths", "anchors", "num_tokens"),
    [([], [0], None), ([0, 4], [0], None), ([4], [4], 8), ([4], [-1], None), ([4, 4], [0], 7)],
)
def test_place_blocks_refuses(lengths, anchors, num_tokens):
    with pytest.raises(ValueError):
        place_blocks(lengths, torch.tensor(anchors), 2, num_tokens=num_tokens)


def test_positions_restart_with_each_document():
    assert context_positions([3, 2], 7).tolist() == [0, 1, 2, 0, 1, 0, 1]
    blocks = place_blocks([3, 4], torch.tensor([1, 3, 5]), 3)
    assert block_positions(blocks).tolist() == [1, 2, 3, 0, 1, 2, 2, 3, 4]
    with pytest.raises(ValueError, match="exceed the row"):
        context_positions([3, 2], 4)


def test_block_reads_its_anchor_and_masks():
    ids = torch.arange(10, 17)
    blocks = place_blocks([3, 4], torch.tensor([1, 3]), 3)
    assert block_token_ids(ids, blocks, 99).tolist() == [11, 99, 99, 13, 99, 99]


def test_labels_end_with_their_document_and_the_row():
    ids = torch.arange(10, 17)
    blocks = place_blocks(
        [3, 4], torch.tensor([1, 3, 6, 0]), 3, valid_A=torch.tensor([True, True, True, False])
    )
    labels, supervised = block_labels(ids, blocks)
    assert supervised.int().tolist() == [0, 1, 0, 0, 1, 1, 0, 0, 0, 0, 0, 0]
    assert labels[supervised].tolist() == [12, 14, 15]
    assert labels[~supervised].unique().tolist() == [0]


def test_labels_follow_the_loss_mask():
    ids, loss_mask = torch.arange(10, 17), torch.tensor([1, 1, 0, 1, 1, 1, 0])
    _, supervised = block_labels(ids, place_blocks([7], torch.tensor([1, 4]), 3), loss_mask)
    assert supervised.int().tolist() == [0, 0, 1, 0, 1, 0]


def test_teacher_indices_wrap_at_zero():
    assert teacher_indices(torch.tensor([0, 1, 6]), 7).tolist() == [6, 0, 5]


def test_slot_weights_decay_from_slot_one():
    weights = slot_weights(16, default_gamma(16))
    assert weights[:3].tolist() == pytest.approx([0.0, 1.0, math.exp(-1 / 7)])
    assert float(weights[15]) == pytest.approx(math.exp(-2))
    assert [default_gamma(size) for size in (16, 10, 8)] == [7, 5, 4]
    with pytest.raises(ValueError, match="positive"):
        slot_weights(4, 0.0)


def test_drop_first_slots_of_rows_and_matrices():
    assert drop_first_slots(torch.arange(6), 3).tolist() == [1, 2, 4, 5]
    assert drop_first_slots(torch.arange(12).view(6, 2), 3).tolist() == [[2, 3], [4, 5], [8, 9], [10, 11]]
