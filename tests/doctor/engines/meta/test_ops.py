"""What an op's schema says about its memory."""

import pytest
import torch

from dflash_doctor.engines.meta.ops import distinct_elements, info_of, tensors_in

aten = torch.ops.aten


@pytest.mark.parametrize(
    "op",
    [aten.view.default, aten.t.default, aten.slice.Tensor, aten._unsafe_view.default, aten.detach.default],
)
def test_views(op: object) -> None:
    info = info_of(op)
    assert (info.is_view, info.mutates) == (True, False)


@pytest.mark.parametrize(
    "op", [aten.add_.Tensor, aten.mul_.Scalar, aten._foreach_add_.Scalar, aten.index_put_.default]
)
def test_writers_that_also_read(op: object) -> None:
    info = info_of(op)
    assert (info.mutates, info.write_only, info.is_view) == (True, False, False)


@pytest.mark.parametrize(
    "op", [aten.copy_.default, aten.zero_.default, aten.fill_.Scalar, aten.normal_.default]
)
def test_writers_that_read_nothing_of_what_they_write(op: object) -> None:
    info = info_of(op)
    assert (info.mutates, info.write_only) == (True, True)


@pytest.mark.parametrize("op", [aten.mm.default, aten.addmm.default, aten.bmm.default, aten.baddbmm.default])
def test_products_that_need_a_workspace(op: object) -> None:
    assert info_of(op).is_product


@pytest.mark.parametrize("op", [aten.add.Tensor, aten.embedding.default, aten._softmax.default])
def test_other_ops_are_no_products(op: object) -> None:
    assert not info_of(op).is_product


@pytest.mark.parametrize(
    ("op", "picks", "decides"),
    [
        (aten.index.Tensor, True, False),
        (aten.embedding.default, True, False),
        (aten.gather.default, True, False),
        (aten.nonzero.default, False, True),
        (aten.masked_select.default, False, True),
        (aten.repeat_interleave.Tensor, False, True),
        (aten.repeat_interleave.self_int, False, False),
        (aten.slice.Tensor, False, False),
    ],
)
def test_what_picks_rows_and_what_decides_shapes(op: object, picks: bool, decides: bool) -> None:
    info = info_of(op)
    assert (info.picks_rows, info.makes_value_shape) == (picks, decides)


@pytest.mark.parametrize(
    ("op", "composite"),
    [(aten.linear.default, True), (aten.matmul.default, True), (aten.layer_norm.default, True),
     (aten.silu_backward.default, False), (aten.mm.default, False), (aten.add.Tensor, False)],
)  # fmt: skip
def test_composite_ops_have_no_kernel_of_their_own(op: object, composite: bool) -> None:
    assert info_of(op).is_composite is composite


def test_names_are_full_and_bare() -> None:
    info = info_of(aten.add.Tensor)
    assert (info.name, info.base) == ("aten.add.Tensor", "add")


def test_tensors_are_found_in_nested_arguments() -> None:
    a, b, c = (torch.empty(1) for _ in range(3))
    assert [t is x for t, x in zip(tensors_in((a, [b, (None, 3, c)], "x"), []), (a, b, c), strict=True)] == [
        True
    ] * 3


def test_distinct_elements_leave_expansion_out() -> None:
    assert distinct_elements(torch.empty(3, 4)) == 12
    assert distinct_elements(torch.empty(3, 1).expand(3, 100)) == 3
    assert distinct_elements(torch.empty(3, 4)[:, 1:3]) == 6
