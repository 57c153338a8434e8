"""Staged reductions worked out by hand from Reduce.cuh, for compute capability 8.0 with 108 multiprocessors.

A block has at most 512 threads; an SM holds 2,048, so that 4 blocks run on each, 432 at once.
"""

import pytest
import torch

from dflash_doctor.engines.meta.reductions import accumulator_bytes, reduction_buffers
from tests.doctor.engines.tracing import A100, BLACKWELL


def meta(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.empty(shape, dtype=dtype, device="meta")


def test_short_rows_need_no_staging() -> None:
    assert reduction_buffers(meta(4096, 1024), [1], A100) == ()


def test_a_sum_of_everything_is_staged_over_as_many_blocks_as_run_at_once() -> None:
    """2^24 elements in fours, 512 threads in a row of blocks: 432 partial sums, one semaphore."""
    assert reduction_buffers(meta(1 << 24), [0], A100) == (432 * 4, 4)


def test_few_long_rows_share_the_blocks() -> None:
    """8 rows of 2^20: 432 / 8 = 54 blocks a row, each with one partial sum, and a semaphore a row."""
    assert reduction_buffers(meta(8, 1 << 20), [1], A100) == (8 * 54 * 4, 8 * 4)


def test_columns_are_summed_by_threads_side_by_side() -> None:
    """Outputs come in fours, so that 32 threads have 128 columns; blocks are 4 threads tall.

    4,096 columns make 32 blocks side by side. A thread would add 65,536 / 4 = 16,384 values; in parts
    of at most 256 that makes 64 blocks one above the other, each with 128 values an output.
    """
    assert reduction_buffers(meta(65_536, 4096), [0], A100) == (4096 * 64 * 128 * 4, 32 * 4)


def test_where_more_blocks_run_at_once_parts_are_smaller() -> None:
    """188 SMs of 1,536 threads run 2,256 blocks of 128 at once: 71 above each other."""
    assert reduction_buffers(meta(65_536, 4096), [0], BLACKWELL) == (4096 * 71 * 128 * 4, 32 * 4)


def test_more_multiprocessors_make_more_partial_sums() -> None:
    small, large = (reduction_buffers(meta(1 << 24), [0], device)[0] for device in (A100, BLACKWELL))
    assert (small, large) == (432 * 4, 188 * 3 * 4)


def test_empty_and_single_tensors_need_nothing() -> None:
    assert reduction_buffers(meta(0, 5), [0], A100) == ()
    assert reduction_buffers(meta(), [], A100) == ()


def test_joined_dimensions_are_reduced_as_one() -> None:
    assert reduction_buffers(meta(64, 1 << 18), [0, 1], A100) == reduction_buffers(meta(1 << 24), [0], A100)


@pytest.mark.parametrize(
    ("op", "dtype", "outputs", "size"),
    [
        ("sum", torch.bfloat16, [meta(1, dtype=torch.bfloat16)], 4),
        ("sum", torch.float32, [meta(1)], 4),
        ("sum", torch.int64, [meta(1, dtype=torch.int64)], 8),
        ("mean", torch.float64, [meta(1, dtype=torch.float64)], 8),
        ("amax", torch.bfloat16, [meta(1, dtype=torch.bfloat16)], 2),
        ("max", torch.float32, [meta(1)], 4),
        ("max", torch.float32, [meta(1), meta(1, dtype=torch.int64)], 16),
        ("argmax", torch.bfloat16, [meta(1, dtype=torch.int64)], 16),
        ("std", torch.float32, [meta(1)], 16),
        ("any", torch.float32, [meta(1, dtype=torch.bool)], 1),
    ],
)
def test_partial_results_are_as_wide_as_what_they_keep(
    op: str, dtype: torch.dtype, outputs: list[torch.Tensor], size: int
) -> None:
    assert accumulator_bytes(op, meta(8, dtype=dtype), outputs) == size
