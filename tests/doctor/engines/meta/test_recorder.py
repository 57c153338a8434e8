"""The books of a trace: births, deaths, phases, and where each thing happened."""

import inspect

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from dflash_doctor.engines.meta.device import Device
from dflash_doctor.engines.meta.recorder import Recorder, is_hidden
from dflash_doctor.engines.meta.session import meta_session
from dflash_doctor.records.trace import AllocationTrace, Storage
from tests.doctor.engines.tracing import Step, backward_of, linear, made_by, ops_named, trace_step


def line_of(text: str) -> int:
    """Find the one line of this file that ends with a mark."""
    lines = inspect.getsource(inspect.getmodule(line_of) or line_of).splitlines()
    (number,) = [at for at, line in enumerate(lines, 1) if line.endswith(f"# {text}")]
    return number


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up = linear(512, 2048)
        self.down = linear(2048, 512)

    def forward(self, x: Tensor) -> Tensor:
        hidden = torch.sin(self.up(x))  # sine
        out: Tensor = self.down(hidden)
        return out


class Stack(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList([Block(), Block()])

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = block(x)
        return x


def traced_stack() -> AllocationTrace:
    def build() -> Step:
        model = Stack()
        x = torch.empty(4096, 512, dtype=torch.bfloat16)
        return lambda: backward_of(model(x))

    return trace_step(build)


def test_a_forward_allocation_knows_its_module_line_and_phase() -> None:
    first, second = made_by(traced_stack(), "sin")
    assert (first.site.module, second.site.module) == ("blocks.0", "blocks.1")
    assert (first.site.phase, first.site.op) == ("forward", "aten.sin.default")
    for storage in (first, second):
        assert (storage.site.stack[0].line, storage.site.stack[0].function) == (line_of("sine"), "forward")
        assert storage.site.stack[0].file == __file__
        assert [line.function for line in storage.site.stack[1:3]] == ["forward", "<lambda>"]


def test_a_backward_allocation_knows_the_forward_line_that_it_belongs_to() -> None:
    cosines = made_by(traced_stack(), "cos")
    assert [storage.site.module for storage in cosines] == ["blocks.1", "blocks.0"]
    assert {storage.site.phase for storage in cosines} == {"backward"}
    assert {storage.site.stack[0].line for storage in cosines} == {line_of("sine")}


def test_products_in_backward_belong_to_the_linear_layer_of_their_forward() -> None:
    products = [op for op in ops_named(traced_stack(), "mm") if op.site.phase == "backward"]
    assert [op.site.module for op in products] == [
        "blocks.1.down", "blocks.1.down", "blocks.1.up", "blocks.1.up",
        "blocks.0.down", "blocks.0.down", "blocks.0.up",
    ]  # fmt: skip


def test_small_storages_keep_one_line_of_their_stack_and_large_ones_more() -> None:
    def build() -> Step:
        small, large = torch.empty(100), torch.empty(1 << 18)
        return lambda: [small + 1, large + 1]

    small, large = made_by(trace_step(build), "add")
    assert len(small.site.stack) == 1
    assert len(large.site.stack) > 1


def test_frames_of_torch_and_of_the_engine_are_hidden() -> None:
    assert is_hidden(torch.nn.functional.__file__)
    assert is_hidden(inspect.getfile(Recorder))
    assert is_hidden("<string>")
    assert not is_hidden(__file__)


def births_and_deaths(trace: AllocationTrace, storage: Storage) -> list[int]:
    return [at for at, number in enumerate(trace.events) if abs(number) == storage.id + 1]


def test_a_storage_dies_after_the_last_op_before_its_release() -> None:
    def build() -> Step:
        x = torch.empty(8)

        def step() -> None:
            y = x + 1
            z = y * 2
            del y
            z - 3

        return step

    trace = trace_step(build)
    (added,), (product,), (difference,) = (made_by(trace, name) for name in ("add", "mul", "sub"))
    ops = {op.site.op.split(".")[1]: op.index for op in trace.ops}
    assert (added.born_at, added.died_at) == (ops["add"], ops["mul"])
    assert (product.born_at, product.died_at) == (ops["mul"], ops["sub"])
    assert (difference.born_at, difference.died_at) == (ops["sub"], ops["sub"])
    born, died = births_and_deaths(trace, added)
    assert (trace.events[born], trace.events[died]) == (added.id + 1, -added.id - 1)
    assert births_and_deaths(trace, product)[0] < died


def test_what_lives_at_the_end_has_no_death() -> None:
    def build() -> Step:
        kept: list[Tensor] = []
        x = torch.empty(8)
        return lambda: kept.append(x + 1)

    trace = trace_step(build, times=2)
    assert [storage.died_at for storage in trace.storages] == [None, None, None]
    assert trace.events == (1, 2, 3)


def test_what_loading_makes_was_there_before_the_first_op() -> None:
    def build() -> Step:
        x = torch.empty(8)
        return lambda: x + 1

    loaded, made = trace_step(build).storages
    assert (loaded.born_at, loaded.site.phase) == (-1, "load")
    assert (made.born_at, made.site.phase) == (1, "forward")


def test_an_address_that_is_used_again_is_a_new_storage() -> None:
    def build() -> Step:
        x = torch.empty(64)
        return lambda: [float((x + 1).shape[0]) for _ in range(50)]

    trace = trace_step(build)
    made = made_by(trace, "add")
    assert len({storage.id for storage in made}) == 50
    assert all(storage.died_at == storage.born_at for storage in made)


def test_tied_weights_are_one_storage_with_one_name() -> None:
    recorder = Recorder()
    with meta_session(recorder, Device()), torch.device("meta"):
        model = nn.ModuleDict({"embedding": nn.Embedding(100, 8), "head": nn.Linear(8, 100, bias=False)})
        model["head"].weight = model["embedding"].weight
        model.register_buffer("scale", torch.empty(3))
        recorder.name_parameters(model)
    trace = recorder.finish(role="test", steady=None, vocab_size=None, seconds=0.0)
    alive = [storage for storage in trace.storages if storage.died_at is None]
    assert [(s.site.module, s.category, s.bytes) for s in alive] == [
        ("embedding.weight", "weights", 3200),
        ("scale", "buffers", 12),
    ]


def test_a_category_is_of_the_storage_whatever_view_names_it() -> None:
    recorder = Recorder()
    x = torch.empty(8, device="meta")
    recorder.adopt(x, "activations", recorder.site("aten.empty", 1))
    recorder.set_category([x.view(2, 4)], "features")
    assert (
        recorder.finish(role="", steady=None, vocab_size=None, seconds=0).storages[0].category == "features"
    )


def test_equal_phases_in_a_row_are_one_and_empty_ones_are_left_out() -> None:
    def build() -> Step:
        x = torch.empty(8, requires_grad=True)
        return lambda: backward_of(torch.sin(x))

    trace = trace_step(build, times=2)
    assert [phase.name for phase in trace.phases] == ["load", "forward", "backward", "forward", "backward"]
    assert all(
        before.stop == after.start for before, after in zip(trace.phases, trace.phases[1:], strict=False)
    )


def test_nothing_is_entered_after_the_end() -> None:
    recorder = Recorder()
    x = torch.empty(8, device="meta")
    recorder.adopt(x, "activations", recorder.site("aten.empty", 1))
    trace = recorder.finish(role="", steady=None, vocab_size=7, seconds=1.5)
    del x
    assert (trace.events, trace.vocab_size, trace.seconds, trace.origin) == ((1,), 7, 1.5, "meta")
    assert recorder.events == [1]


def test_a_trace_names_the_version_of_torch() -> None:
    trace = trace_step(lambda: lambda: F.relu(torch.empty(3)))
    assert torch.__version__.startswith(trace.versions["torch"].partition("+")[0])
