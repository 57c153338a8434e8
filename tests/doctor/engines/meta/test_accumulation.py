"""Gradients that autograd adds up in place, as it does without a dispatch mode."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from dflash_doctor.engines.meta.accumulation import sole_use_count
from tests.doctor.engines.tracing import Step, backward_of, made_by, made_in_step, ops_named, trace_step

SIZE = 400
"""Bytes of each tensor here, but for the ids."""


def backward_bytes(forward: Callable[[Tensor, Tensor], Any]) -> list[int]:
    """Give the sizes of what backward makes, in order, for a leaf of 100 floats."""

    def build() -> Step:
        leaf = torch.empty(100, requires_grad=True)
        picks = torch.empty(30, dtype=torch.long)
        return lambda: backward_of(forward(leaf, picks))

    made = [s for s in made_in_step(trace_step(build)) if s.site.phase == "backward"]
    return [storage.bytes for storage in made if storage.category != "temporaries"]


def test_two_gradients_of_one_tensor_need_no_third() -> None:
    def build() -> Step:
        leaf = torch.empty(100, requires_grad=True)

        def step() -> None:
            shared = leaf * 2
            backward_of(torch.sin(shared) * torch.exp(shared))

        return step

    trace = trace_step(build)
    (add,) = [op for op in ops_named(trace, "add") if op.site.phase == "backward"]
    assert made_by(trace, "add") == []
    assert add.writes == (add.reads[0].storage,)


def test_gradients_of_further_batches_are_added_into_the_first() -> None:
    def build() -> Step:
        leaf = torch.empty(100, requires_grad=True)
        return lambda: backward_of(torch.sin(leaf))

    trace = trace_step(build, times=3)
    kept = [storage for storage in made_in_step(trace) if storage.died_at is None]
    assert [storage.bytes for storage in kept] == [SIZE]
    assert all(op.writes == (kept[0].id,) for op in ops_named(trace, "add_"))
    assert len(ops_named(trace, "add_")) == 2


def test_the_derivative_of_indexing_writes_into_its_zeros() -> None:
    assert backward_bytes(lambda x, i: x[i]) == [SIZE]
    assert backward_bytes(lambda x, i: x.index_select(0, i)) == [SIZE]
    assert backward_bytes(lambda x, i: x.gather(0, i)) == [SIZE]
    assert backward_bytes(lambda x, i: x.view(2, 50).max(1)[0]) == [SIZE]


def test_a_forward_that_writes_out_of_place_makes_its_output() -> None:
    def build() -> Step:
        x, i, y = torch.empty(100), torch.empty(30, dtype=torch.long), torch.empty(30)
        return lambda: [x.index_put((i,), y), x.scatter_add(0, i, y), x.index_add(0, i, y)]

    assert [storage.bytes for storage in made_in_step(trace_step(build))] == [SIZE, SIZE, SIZE]


class Scattered(torch.autograd.Function):
    @staticmethod
    def forward(ctx: object, x: Tensor, index: Tensor) -> Tensor:
        ctx.index = index  # type: ignore[attr-defined]
        return x.index_select(0, index)

    @staticmethod
    def backward(ctx: object, *grads: Tensor) -> tuple[Tensor, None]:
        zeros = grads[0].new_zeros(100)
        return zeros.index_add(0, ctx.index, grads[0]), None  # type: ignore[attr-defined]


def test_a_backward_written_in_python_makes_what_it_says() -> None:
    assert backward_bytes(lambda x, i: Scattered.apply(x, i)) == [SIZE, SIZE]  # type: ignore[no-untyped-call]


def test_a_sum_in_forward_makes_its_output() -> None:
    def build() -> Step:
        x, y = torch.empty(100), torch.empty(100)
        return lambda: F.relu(x) + F.relu(y)

    assert [s.bytes for s in made_by(trace_step(build), "add")] == [SIZE]


def test_the_use_count_of_a_sole_owner_is_small() -> None:
    assert 1 <= sole_use_count() <= 4
