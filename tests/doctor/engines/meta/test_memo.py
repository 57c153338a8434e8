"""Outputs that are made by recipe are like those of the kernel."""

from typing import Any

import pytest
import torch

from dflash_doctor.engines.meta.memo import OutputMemo

aten = torch.ops.aten


class Counted:
    """An op that counts its runs."""

    def __init__(self, op: Any) -> None:
        self.op, self.runs = op, 0

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        self.runs += 1
        return self.op(*args, **kwargs)


def meta(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.empty(shape, dtype=dtype, device="meta")


def test_the_second_run_with_equal_metadata_needs_no_kernel() -> None:
    memo, multiply = OutputMemo(), Counted(aten.mm.default)
    first, second = (memo.run(multiply, (meta(4, 8), meta(8, 2)), {}) for _ in range(2))
    assert multiply.runs == 1
    assert (second.shape, second.stride(), second.dtype) == (first.shape, first.stride(), first.dtype)
    assert first.untyped_storage()._cdata != second.untyped_storage()._cdata


@pytest.mark.parametrize(
    "others",
    [(meta(4, 8), meta(8, 3)), (meta(8, 4).t(), meta(8, 2)), (meta(4, 8).double(), meta(8, 2).double())],
)
def test_other_shapes_strides_or_dtypes_run_the_kernel(others: tuple[torch.Tensor, ...]) -> None:
    memo, multiply = OutputMemo(), Counted(aten.mm.default)
    memo.run(multiply, (meta(4, 8), meta(8, 2)), {})
    memo.run(multiply, others, {})
    assert multiply.runs == 2


def test_numbers_of_different_types_are_different_arguments() -> None:
    memo, add = OutputMemo(), Counted(aten.add.Scalar)
    ids = meta(3, dtype=torch.int64)
    assert memo.run(add, (ids, 1), {}).dtype == torch.int64
    assert memo.run(add, (ids, 1.0), {}).dtype == torch.float32
    assert memo.run(add, (ids, True), {}).dtype == torch.int64
    assert add.runs == 3


def test_keyword_arguments_count() -> None:
    memo, empty_like = OutputMemo(), Counted(aten.empty_like.default)
    assert memo.run(empty_like, (meta(3),), {"dtype": torch.float16}).dtype == torch.float16
    assert memo.run(empty_like, (meta(3),), {"dtype": torch.float64}).dtype == torch.float64


def test_several_outputs_come_in_order() -> None:
    memo, norm = OutputMemo(), Counted(aten.native_layer_norm.default)
    first, second = (memo.run(norm, (meta(4, 8), [8], None, None, 1e-5), {}) for _ in range(2))
    assert norm.runs == 1
    assert [t.shape for t in second] == [t.shape for t in first] == [(4, 8), (4, 1), (4, 1)]


def test_an_output_that_shares_memory_is_never_made_by_recipe() -> None:
    memo, view = OutputMemo(), Counted(aten.view.default)
    x = meta(4, 2)
    for _ in range(2):
        assert memo.run(view, (x, [8]), {}).untyped_storage()._cdata == x.untyped_storage()._cdata
    assert view.runs == 2


def test_real_tensors_run_the_kernel() -> None:
    memo, add = OutputMemo(), Counted(aten.add.Tensor)
    for number in (1.0, 2.0):
        assert memo.run(add, (torch.tensor(number), torch.tensor(1.0)), {}).item() == number + 1
    assert add.runs == 2
