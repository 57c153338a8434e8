"""What the mode enters for views, writes, phases, functions and workspaces."""

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F
from torch.profiler import record_function
from torch.utils.checkpoint import checkpoint

from dflash_doctor.engines.meta.device import Device
from tests.doctor.engines.tracing import (
    A100,
    BLACKWELL,
    HOPPER,
    MIB,
    Step,
    backward_of,
    linear,
    made_by,
    made_in_step,
    ops_named,
    trace_step,
)


def test_a_view_makes_nothing_and_reads_nothing() -> None:
    def build() -> Step:
        x = torch.empty(4, 6)
        return lambda: x.view(-1)[1:].reshape(23, 1).t().unsqueeze(0).expand(2, 1, 23)

    trace = trace_step(build)
    assert made_in_step(trace) == []
    views = [op for op in trace.ops if op.site.phase == "forward"]
    assert [op.site.op.split(".")[1] for op in views] == ["view", "slice", "view", "t", "unsqueeze", "expand"]
    assert all((op.reads, op.writes, op.views) == ((), (), (0,)) for op in views)


def test_parameters_are_never_counted_again_through_views() -> None:
    def build() -> Step:
        weight = torch.nn.Parameter(torch.empty(8, 8))
        return lambda: [weight.t(), weight.view(64), weight.detach(), weight.data, weight[2:], weight.T.T]

    trace = trace_step(build)
    assert [storage.bytes for storage in trace.storages] == [256]


def test_a_read_through_a_view_is_a_read_of_the_storage_and_counts_its_elements() -> None:
    def build() -> Step:
        x = torch.empty(10, 6)
        return lambda: x[2:5].t() + 1

    trace = trace_step(build)
    (add,) = ops_named(trace, "add")
    (read,) = add.reads
    assert (read.storage, read.shape, read.elements, read.argument) == (0, (6, 3), 18, 0)


def test_an_expanded_dimension_counts_once_in_a_read() -> None:
    def build() -> Step:
        x = torch.empty(10, 1)
        return lambda: x.expand(10, 1000) * 2

    (multiply,) = ops_named(trace_step(build), "mul")
    assert multiply.reads[0].elements == 10


def test_an_op_in_place_makes_nothing_and_both_reads_and_writes() -> None:
    def build() -> Step:
        x, y = torch.empty(8), torch.empty(8)
        return lambda: x.mul_(2).add_(y)

    trace = trace_step(build)
    multiply, add = ops_named(trace, "mul_", "add_")
    assert made_in_step(trace) == []
    assert [read.storage for read in multiply.reads] == [0]
    assert ([read.storage for read in add.reads], add.writes) == ([0, 1], (0,))


def test_being_filled_or_copied_into_is_no_read() -> None:
    def build() -> Step:
        x, y = torch.empty(8), torch.empty(8)

        def step() -> None:
            x.zero_()
            x.fill_(1.0)
            x[:4].copy_(y[:4])

        return step

    zero, fill, copy = ops_named(trace_step(build), "zero_", "fill_", "copy_")
    assert (zero.reads, zero.writes) == ((), (0,))
    assert (fill.reads, fill.writes) == ((), (0,))
    assert ([read.storage for read in copy.reads], copy.writes) == ([1], (0,))
    assert copy.reads[0].elements == 4


@pytest.mark.parametrize(
    ("pick", "elements"),
    [
        (lambda x, i: x[i], 5),
        (lambda x, i: x.index_select(0, i), 5),
        (lambda x, i: F.embedding(i, x), 5),
        (lambda x, i: x.gather(0, i[:, None].expand(5, 3)), 15),
    ],
)
def test_ops_that_pick_rows_say_how_many_their_index_has(pick: Any, elements: int) -> None:
    def build() -> Step:
        x, i = torch.empty(100, 8), torch.empty(5, dtype=torch.long)
        return lambda: pick(x, i)

    (op,) = ops_named(trace_step(build), "index", "index_select", "embedding", "gather")
    assert op.index_elements == elements


def test_record_function_begins_and_ends_a_phase() -> None:
    def build() -> Step:
        x = torch.empty(8)

        def step() -> None:
            x + 1
            with record_function("phase:teacher"):
                x + 2
                with record_function("anything else"):
                    x + 3
                with record_function("phase:loss"):
                    x + 4
                x + 5
            x + 6

        return step

    trace = trace_step(build)
    phases = [op.site.phase for op in ops_named(trace, "add")]
    assert phases == ["forward", "teacher", "teacher", "loss", "teacher", "forward"]
    assert [phase.name for phase in trace.phases] == [
        "load", "forward", "teacher", "loss", "teacher", "forward",
    ]  # fmt: skip


def test_backward_is_a_phase_of_its_own_whatever_was_set() -> None:
    def build() -> Step:
        x = torch.empty(8, requires_grad=True)

        def step() -> None:
            with record_function("phase:draft"):
                backward_of(torch.sin(x))
            x + 1

        return step

    trace = trace_step(build)
    names = [(op.site.op.split(".")[1], op.site.phase) for op in ops_named(trace, "sin", "cos", "mul", "add")]
    assert names == [("sin", "draft"), ("cos", "backward"), ("mul", "backward"), ("add", "forward")]


class Doubled(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x * 2

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        return grads[0] * 2


def test_a_function_of_ones_own_keeps_what_it_saves_until_its_backward() -> None:
    def build() -> Step:
        x = torch.empty(8, requires_grad=True)

        def step() -> None:
            out: Tensor = Doubled.apply(x + 1)  # type: ignore[no-untyped-call]
            out.neg()
            backward_of(out)

        return step

    trace = trace_step(build)
    (saved,), doubled = made_by(trace, "add"), made_by(trace, "mul")
    backward = next(op.index for op in trace.ops if op.site.phase == "backward")
    assert saved.died_at is not None and saved.died_at >= backward
    assert [storage.site.phase for storage in doubled] == ["forward", "backward"]


def test_a_checkpoint_runs_its_forward_again_in_backward() -> None:
    def build() -> Step:
        x = torch.empty(8, requires_grad=True)
        return lambda: backward_of(checkpoint(lambda y: torch.sin(torch.exp(y)), x, use_reentrant=False))

    trace = trace_step(build)
    phases = {name: [op.site.phase for op in ops_named(trace, name)] for name in ("exp", "sin", "cos")}
    assert phases["exp"] == ["forward", "backward"]
    assert phases["sin"][0] == "forward"
    assert phases["cos"] == ["backward"]
    first, again = made_by(trace, "exp")
    start_of_backward = next(op.index for op in trace.ops if op.site.phase == "backward")
    assert first.died_at is not None and first.died_at < start_of_backward <= again.born_at


@pytest.mark.parametrize(
    ("device", "size"),
    [(A100, 8_519_680), (HOPPER, 32 * MIB), (BLACKWELL, 32 * MIB)],
    ids=["8.0", "9.0", "12.0"],
)
def test_forward_has_one_cublas_workspace_and_backward_another(device: Device, size: int) -> None:
    def build() -> Step:
        first, second = linear(64, 64), linear(64, 64)
        return lambda: backward_of(second(F.relu(first(torch.empty(8, 64, dtype=torch.bfloat16)))))

    trace = trace_step(build, times=2, device=device)
    workspaces = [storage for storage in trace.storages if storage.category == "workspace"]
    assert [(w.bytes, w.site.phase, w.died_at) for w in workspaces] == [
        (size, "forward", None),
        (size, "backward", None),
    ]


def test_a_forward_pass_alone_has_one_workspace_however_often_it_runs() -> None:
    def build() -> Step:
        layer = linear(64, 64)
        return torch.no_grad()(lambda: layer(torch.empty(8, 64, dtype=torch.bfloat16)))

    trace = trace_step(build, times=3)
    assert [s.category for s in trace.storages].count("workspace") == 1


def test_a_step_without_a_product_has_no_workspace() -> None:
    def build() -> Step:
        x = torch.empty(8, requires_grad=True)
        return lambda: backward_of(torch.sin(x))

    assert all(storage.category != "workspace" for storage in trace_step(build).storages)


def test_tensors_on_the_cpu_are_no_memory_of_the_device() -> None:
    def build() -> Step:
        return lambda: torch.zeros(1000, device="cpu") + torch.arange(1000, device="cpu")

    trace = trace_step(build)
    assert (trace.storages, trace.ops) == ((), ())


def test_moving_to_the_device_is_a_birth_of_the_moved_size() -> None:
    def build() -> Step:
        rows = torch.zeros(3, 5, dtype=torch.long, device="cpu")
        return lambda: rows.to("meta")

    (storage,) = trace_step(build).storages
    assert (storage.bytes, storage.shape, storage.dtype) == (120, (3, 5), "int64")


def test_an_op_of_which_the_scratch_is_not_known_is_named() -> None:
    def build() -> Step:
        x = torch.empty(100)
        return lambda: [x.sort(), x.topk(3), x + 1]

    assert trace_step(build).untraced_ops == ("aten.sort.default", "aten.topk.default")
