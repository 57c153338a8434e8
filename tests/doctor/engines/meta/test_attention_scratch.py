"""Scratch of attention kernels, worked out by hand from their sources."""

import pytest
import torch

from dflash_doctor.engines.meta.device import Device
from tests.doctor.engines.meta.scratch_steps import scratch_of
from tests.doctor.engines.tracing import A100, BLACKWELL


def heads(batch: int, count: int, rows: int, width: int, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
    """Make heads [B, H, T, D] as a view of [B, T, H, D], as models have them."""
    return torch.empty(batch, rows, count, width, dtype=dtype, device="meta").transpose(1, 2)


FLASH, FLASH_BACKWARD = "_scaled_dot_product_flash_attention", "_scaled_dot_product_flash_attention_backward"
EFFICIENT = "_scaled_dot_product_efficient_attention"
EFFICIENT_BACKWARD = "_scaled_dot_product_efficient_attention_backward"


def test_flash_that_fills_the_device_splits_nothing() -> None:
    """2 x 16 heads of 4,096 / 64 blocks are 2,048, far more than 216 halves of multiprocessors."""
    query = heads(2, 16, 4096, 128)
    assert scratch_of(FLASH, query, query, query, 0.0) == []


def test_flash_splits_keys_where_few_blocks_would_run() -> None:
    """One block of rows for each of 8 heads; 64 blocks of 256 keys: 22 splits of 3 keep 176 of 216 busy."""
    query, key = heads(1, 8, 64, 64), heads(1, 8, 16_384, 64)
    (first, sums, outputs) = scratch_of(FLASH, query, key, key, 0.0)
    assert (first, sums, outputs) == ("out", f"+{22 * 8 * 64 * 4}", f"+{22 * 8 * 64 * 64 * 4}")


def test_flash_with_dropout_splits_nothing() -> None:
    query, key = heads(1, 8, 64, 64), heads(1, 8, 16_384, 64)
    assert scratch_of(FLASH, query, key, key, 0.1) == []


def test_flash_backward_has_row_sums_and_a_float32_gradient_of_queries() -> None:
    """500 rows are rounded to 512, a width of 72 to 96."""
    query = heads(2, 4, 500, 72)
    assert scratch_of(FLASH_BACKWARD, query, query, query) == [
        "out", f"+{2 * 4 * 512 * 4}", f"+{2 * 4 * 512 * 96 * 4}",
    ]  # fmt: skip


def test_flash_backward_of_grouped_heads_expands_gradients_of_keys_and_values() -> None:
    query, key = heads(1, 8, 512, 64), heads(1, 2, 512, 64)
    expanded = 512 * 8 * 64 * 2
    assert scratch_of(FLASH_BACKWARD, query, query, key)[-2:] == [f"+{expanded}", f"+{expanded}"]


@pytest.mark.parametrize("op", [FLASH_BACKWARD, EFFICIENT_BACKWARD])
def test_a_gradient_that_does_not_lie_dense_is_copied(op: str) -> None:
    query = heads(1, 2, 64, 32)
    gradient = torch.empty(1, 2, 64, 32, dtype=torch.bfloat16, device="meta")
    assert scratch_of(op, gradient, query, query, query)[:2] == [f"+{2 * 64 * 32 * 2}", "out"]


def test_memory_efficient_forward_accumulates_wide_heads_in_float32() -> None:
    narrow, wide = heads(1, 2, 64, 128), heads(1, 2, 64, 160)
    assert scratch_of(EFFICIENT, narrow, narrow, narrow) == []
    assert scratch_of(EFFICIENT, wide, wide, wide) == ["out", f"+{64 * 2 * 160 * 4}"]
    full = heads(1, 2, 64, 160, torch.float32)
    assert scratch_of(EFFICIENT, full, full, full) == []


def test_memory_efficient_backward_stages_the_gradient_of_queries_in_tiles() -> None:
    """512 rows in 8 tiles of 64; one column tile of 64 x 64 float32 numbers and a lock of 4."""
    query = heads(1, 4, 512, 64)
    tiles = 4 * 8 * (64 * 64 + 4) * 4
    assert scratch_of(EFFICIENT_BACKWARD, query, query, query, query) == [
        "out", f"+{4 * 512 * 4}", f"+{tiles}", f"-{4 * 512 * 4}",
    ]  # fmt: skip


def test_row_sums_of_float32_are_made_by_a_product() -> None:
    query = heads(1, 4, 512, 64, torch.float32)
    rows = 4 * 512
    assert scratch_of(EFFICIENT_BACKWARD, query, query, query, query)[1:6] == [
        f"+{rows * 64 * 4}", f"+{rows * 4}", f"+{rows * 4}", f"-{rows * 4}", f"-{rows * 64 * 4}",
    ]  # fmt: skip


@pytest.mark.parametrize("device", [A100, BLACKWELL], ids=["8.0", "12.0"])
def test_heads_wider_than_128_also_stage_the_gradients_of_keys_and_values(device: Device) -> None:
    """128-row tiles: 4 x 3 of 128 x 64 for queries; 8 splits of 64 keys, columns rounded to 2 x 256."""
    query = heads(1, 16, 512, 192)
    queries, keys = 4 * 3 * (128 * 64 + 4), 8 * 64 * 512
    staged = scratch_of(EFFICIENT_BACKWARD, query, query, query, query, device=device)[2]
    assert staged == f"+{16 * (queries + keys) * 4}"
