"""Values that the host reads back: true for integers, counted as unknown for anything else."""

import inspect
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from dflash_doctor.engines.meta.shadows import MAX_ELEMENTS, Shadows, is_integer
from dflash_doctor.records.trace import AllocationTrace, ValueRead
from tests.doctor.engines.tracing import Step, made_by, trace_step


def read_by(function: Callable[[], Any]) -> tuple[Any, AllocationTrace]:
    """Run a function under the engine; give what it returned and the trace."""
    returned: list[Any] = []

    def build() -> Step:
        return lambda: returned.append(function())

    trace = trace_step(build)
    return returned[0], trace


def ids(*values: int) -> Tensor:
    return torch.tensor(values, device="cpu").to("meta")


@pytest.mark.parametrize(
    ("function", "value"),
    [
        (lambda: torch.arange(5).sum().item(), 10),
        (lambda: torch.arange(2, 11, 3).tolist(), [2, 5, 8]),
        (lambda: ids(3, 1, 4).cumsum(0).tolist(), [3, 4, 8]),
        (lambda: (ids(3, 1, 4) > 2).tolist(), [True, False, True]),
        (lambda: bool((torch.arange(4) == torch.arange(4)).all()), True),
        (lambda: int(ids(3, 1, 4).max()), 4),
        (lambda: ids(3, 1, 4)[torch.arange(2)].tolist(), [3, 1]),
        (lambda: ids(3, 1, 4)[ids(1, 0, 1) > 0].tolist(), [3, 4]),
        (lambda: (ids(0, 7, 0, 9) != 0).nonzero().tolist(), [[1], [3]]),
        (lambda: torch.masked_select(ids(5, 6), ids(0, 1) > 0).tolist(), [6]),
        (lambda: torch.cat([ids(1), torch.zeros(2, dtype=torch.long)]).tolist(), [1, 0, 0]),
        (lambda: torch.where(ids(1, 0) > 0, ids(5, 5), ids(6, 6)).tolist(), [5, 6]),
        (lambda: ids(1, 2).repeat_interleave(ids(2, 1)).tolist(), [1, 1, 2]),
        (lambda: torch.full((2,), 7, dtype=torch.int32).tolist(), [7, 7]),
        (lambda: ids(5, 3).cpu().numpy().tolist(), [5, 3]),
        (lambda: ids(5, 3).to(torch.int32).to("cpu").tolist(), [5, 3]),
        (lambda: torch.diff(ids(0, 4, 9)).tolist(), [4, 5]),
        (lambda: torch.searchsorted(ids(1, 5, 9), ids(6)).item(), 2),
        (lambda: torch.equal(ids(1, 2), ids(1, 2)), True),
        (lambda: ids(4, 2, 9).argsort().tolist(), [1, 0, 2]),
        (lambda: (ids(4, 2).view(2, 1) + ids(1, 1, 1)).sum(0).tolist(), [8, 8, 8]),
        (lambda: torch.ones(3, 3, dtype=torch.bool).tril().sum().item(), 6),
    ],
)
def test_integers_are_read_back_true(function: Callable[[], Any], value: Any) -> None:
    read, trace = read_by(function)
    assert read == value
    assert trace.value_reads
    assert all(read.known for read in trace.value_reads)


def changed_in_place() -> list[int]:
    x = torch.zeros(5, dtype=torch.long)
    x[1:3] = 7
    x[4] += 2
    x.add_(1)
    x[ids(0)] = 9
    x.masked_fill_(torch.arange(5) == 3, -1)
    x.view(-1)[1:2].copy_(ids(100))
    return x.tolist()


def test_writes_through_views_keep_values_true() -> None:
    assert read_by(changed_in_place)[0] == [9, 100, 8, -1, 3]


def test_the_host_may_copy_values_into_memory_of_its_own() -> None:
    def function() -> list[int]:
        host = torch.zeros(2, dtype=torch.long, device="cpu")
        host.copy_(ids(6, 8))
        return host.tolist()

    assert read_by(function)[0] == [6, 8]


def test_the_rows_that_a_known_mask_selects_are_as_many_as_it_says() -> None:
    def function() -> Tensor:
        return torch.empty(4, 10)[ids(1, 0, 1, 1) > 0]

    selected, trace = read_by(function)
    assert selected.shape == (3, 10)
    assert made_by(trace, "index")[0].bytes == 120
    assert [read.known for read in trace.value_reads] == [True]


def the_unknown(trace: AllocationTrace) -> ValueRead:
    (found,) = [read for read in trace.value_reads if not read.known]
    return found


def test_a_mask_of_unknown_values_selects_all_and_is_counted_unknown() -> None:
    def function() -> Tensor:
        return torch.empty(4, 10)[torch.empty(4) > 0]

    selected, trace = read_by(function)
    assert selected.shape == (4, 10)
    assert not the_unknown(trace).floating


def test_nonzero_of_unknown_values_gives_every_element() -> None:
    indices, trace = read_by(lambda: (torch.empty(3, 2) > 0).nonzero())
    assert indices.shape == (6, 2)
    assert the_unknown(trace).site.op == "aten.nonzero.default"


def branch_on_a_float() -> bool:
    return bool(torch.empty(3).sum() > 0)  # unknown


def test_an_unknown_value_is_counted_with_the_line_that_reads_it() -> None:
    _, trace = read_by(lambda: [branch_on_a_float() for _ in range(3)])
    unknown = the_unknown(trace)
    lines = inspect.getsource(inspect.getmodule(branch_on_a_float) or object).splitlines()
    assert unknown.count == 3
    assert unknown.site.stack[0].function == "branch_on_a_float"
    assert lines[unknown.site.stack[0].line - 1].endswith("# unknown")


def test_a_single_number_of_floating_point_is_told_from_what_decides_shapes() -> None:
    _, trace = read_by(lambda: torch.empty(3).sum().item())
    assert (the_unknown(trace).floating, the_unknown(trace).count) == (True, 1)


def test_a_value_read_points_at_the_event_it_follows() -> None:
    def function() -> float:
        torch.empty(8)
        return float(torch.empty(8).sum())

    _, trace = read_by(function)
    before = trace.events[: the_unknown(trace).event]
    assert len([number for number in before if number > 0]) == 3


def test_values_written_from_unknown_ones_are_unknown() -> None:
    def function() -> list[int]:
        x = torch.zeros(3, dtype=torch.long)
        x[0] = torch.empty(3).argmax()
        return x.tolist()

    _, trace = read_by(function)
    assert not all(read.known for read in trace.value_reads)


def test_values_die_with_their_storage() -> None:
    shadows = Shadows()
    x = torch.zeros(3, dtype=torch.long, device="meta")
    shadows.set(x, torch.tensor([1, 2, 3]))
    assert shadows.get(x[1:]) is not None
    shadows.drop(x.untyped_storage()._cdata)
    assert shadows.get(x) is None


def test_only_small_integers_and_booleans_have_shadows() -> None:
    assert is_integer(torch.empty(MAX_ELEMENTS, dtype=torch.int32, device="meta"))
    assert is_integer(torch.empty(1, dtype=torch.bool, device="meta"))
    assert not is_integer(torch.empty(MAX_ELEMENTS + 1, dtype=torch.int32, device="meta"))
    assert not is_integer(torch.empty(1, device="meta"))
