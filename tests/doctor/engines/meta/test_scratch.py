"""Scratch of single kernels, worked out by hand from their sources."""

import pytest
import torch

from tests.doctor.engines.meta.scratch_steps import scratch_of


def meta(*shape: int, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
    return torch.empty(shape, dtype=dtype, device="meta")


def test_a_product_copies_a_matrix_that_has_no_dense_direction() -> None:
    assert scratch_of("mm", meta(8, 4), meta(4, 6)) == ["out"]
    assert scratch_of("mm", meta(4, 8).t(), meta(6, 4).t()) == ["out"]
    assert scratch_of("mm", meta(8, 8)[:, ::2], meta(4, 6)) == ["out", "+64"]
    assert scratch_of("mm", meta(8, 9)[:, 1:5], meta(4, 6)) == ["out"]
    assert scratch_of("addmm", meta(6), meta(8, 4), meta(1, 6).expand(4, 6)) == ["out", "+48"]


def test_foreach_norm_has_a_number_a_chunk_of_the_longest_tensor() -> None:
    tensors = [meta(65_536), meta(65_537), meta(5)]
    assert scratch_of("_foreach_norm", tensors) == ["+24"]


def test_softmax_backward_makes_a_product_and_log_softmax_only_dense_gradients() -> None:
    assert scratch_of("_softmax_backward_data", meta(8, 4)) == ["out", "+64"]
    assert scratch_of("_log_softmax_backward_data", meta(8, 4)) == ["out"]
    assert scratch_of("_log_softmax_backward_data", meta(4, 8).t()) == ["out", "+64"]


def test_a_short_embedding_has_no_scratch() -> None:
    ids = meta(3072, dtype=torch.int64)
    assert scratch_of("embedding_dense_backward", meta(3072, 8), ids, 100, -1, False) == []


def test_a_long_embedding_sorts_its_ids_and_sums_in_parts() -> None:
    """4,096 ids of 32 KiB; 100 rows at most; 409 + 100 parts of 8 float32 numbers."""
    ids = meta(4096, dtype=torch.int64)
    sort = 2 * 32_768 + 4607 + 1024
    assert scratch_of("embedding_dense_backward", meta(4096, 8), ids, 100, -1, False) == [
        "+32768", "+32768", "+32768", f"+{sort}", f"-{sort}", "-32768", "out", "+32768", "+8",
        "+32768", "+1536", "-1536", "-32768", "+800", "+800", "+1536", "-1536", "+8",
        f"+{509 * 8}", f"+{509 * 32}",
    ]  # fmt: skip


def test_rows_of_one_index_are_sorted_before_they_add_up() -> None:
    index, values = meta(5000, dtype=torch.int64), meta(5000, 8)
    ids, sort = 40_000, 2 * 40_192 + 4607 + 2 * 1024
    steps = scratch_of("index_put", meta(100, 8), [index], values, True)
    assert steps == ["out", *[f"+{ids}"] * 4, f"+{sort}"]
    assert scratch_of("index_put", meta(100, 8), [index], values, False) == ["out"]
    assert scratch_of("index_put", meta(100, 8), [index], values) == ["out"]


def test_two_indices_are_broadcast_before_they_are_sorted() -> None:
    rows, columns = meta(10, 1, dtype=torch.int64), meta(1, 20, dtype=torch.int64)
    assert scratch_of("index_put", meta(100, 100), [rows, None, columns], meta(1), True)[1] == "+1600"


@pytest.mark.parametrize(
    ("source", "out", "steps"),
    [
        (meta(64, 100, dtype=torch.float32), meta(64, 100, dtype=torch.float32), []),
        (meta(100, dtype=torch.float32), meta(100, dtype=torch.float32), ["out", "+1279"]),
        (meta(100, dtype=torch.int64), meta(100, dtype=torch.int64), ["out", "+2815"]),
        (meta(100, dtype=torch.bool), meta(100, dtype=torch.int64), ["+800", "out", "+2815"]),
    ],
)
def test_a_cumulative_sum_converts_and_scans(
    source: torch.Tensor, out: torch.Tensor, steps: list[str]
) -> None:
    assert scratch_of("cumsum", source, source.dim() - 1, outputs=[out]) == steps


def test_a_sum_of_booleans_makes_integers_of_all_of_them() -> None:
    counted = meta(1, dtype=torch.int64)
    assert scratch_of("sum", meta(1000, dtype=torch.bool), outputs=[counted]) == ["out", "+8000"]
    assert scratch_of("any", meta(1000, dtype=torch.bool), outputs=[meta(1, dtype=torch.bool)]) == ["out"]


def test_logsumexp_makes_all_exponentials() -> None:
    rows = meta(100, 500, dtype=torch.float32)
    assert scratch_of("logsumexp", rows, [1], outputs=[meta(100, dtype=torch.float32)]) == [
        "+400",
        "+200000",
        "out",
    ]


@pytest.mark.parametrize("loss", ["mse_loss", "smooth_l1_loss", "huber_loss"])
def test_a_loss_makes_one_of_each_element_before_it_is_reduced(loss: str) -> None:
    assert scratch_of(loss, meta(8, 4), meta(8, 4)) == ["out", "+64"]
    assert scratch_of(loss, meta(8, 4), meta(4), 2) == ["out", "+64"]
    assert scratch_of(loss, meta(8, 4), meta(8, 4), 0) == ["out"]


def test_a_layer_norm_of_many_rows_sums_its_weights_gradients_in_parts() -> None:
    """100,000 rows of 64: 3,125 parts of 32 rows, for the weight and for the bias, then summed."""
    rows, mean = meta(100_000, 64), meta(100_000, 1, dtype=torch.float32)
    args = (rows, rows, [64], mean, mean, meta(64), meta(64))
    part = 3125 * 64 * 2
    steps = scratch_of("native_layer_norm_backward", *args, [True, True, True])
    assert steps[:4] == ["out", f"+{part}", f"+{part}", "+128"]
    assert scratch_of("native_layer_norm_backward", *args, [True, True, False])[:3] == [
        "out",
        f"+{part}",
        "+128",
    ]
    assert scratch_of("native_layer_norm_backward", *args, [True, False, False]) == ["out"]


def test_a_layer_norm_of_few_rows_needs_no_parts() -> None:
    rows, mean = meta(65_536, 64), meta(65_536, 1, dtype=torch.float32)
    args = (rows, rows, [64], mean, mean, meta(64), meta(64), [True, True, True])
    assert scratch_of("native_layer_norm_backward", *args) == ["out"]
