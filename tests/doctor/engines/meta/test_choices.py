"""What torch chooses on CUDA, chosen on meta: masks, dtypes and temporaries."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from dflash_doctor.records.trace import Storage
from tests.doctor.engines.tracing import Step, backward_of, made_by, made_in_step, ops_named, trace_step

FP16, FP32, BF16 = torch.float16, torch.float32, torch.bfloat16


def sizes(storages: list[Storage]) -> list[tuple[int, str]]:
    return [(storage.bytes, storage.dtype) for storage in storages]


@pytest.mark.parametrize(
    "drop",
    [
        lambda x: F.dropout(x, 0.1),
        torch.nn.Dropout(0.1),
        lambda x: torch.dropout(x, 0.1, True),
        lambda x: F.dropout(x, 0.1, True, False),
    ],
)
def test_dropout_keeps_a_boolean_mask(drop: Callable[[Tensor], Tensor]) -> None:
    def build() -> Step:
        x = torch.empty(1000, dtype=BF16)
        return lambda: drop(x)

    assert sizes(made_in_step(trace_step(build))) == [(1000, "bool"), (2000, "bfloat16")]


@pytest.mark.parametrize("drop", [lambda x: F.dropout(x, 0.1, training=False), lambda x: F.dropout(x, 0.0)])
def test_dropout_that_drops_nothing_keeps_no_mask(drop: Callable[[Tensor], Tensor]) -> None:
    def build() -> Step:
        x = torch.empty(1000, dtype=BF16)
        return lambda: drop(x)

    assert "bool" not in {storage.dtype for storage in made_in_step(trace_step(build))}


SOFTMAXES: dict[str, Callable[[Any], Tensor]] = {
    "functional": lambda x: F.softmax(x, -1, dtype=FP32),
    "functional-with-level": lambda x: F.softmax(x, -1, 3, FP32),
    "torch": lambda x: torch.softmax(x, -1, dtype=FP32),
    "torch-positional": lambda x: torch.softmax(x, -1, FP32),
    "method": lambda x: x.softmax(-1, FP32),
    "log-functional": lambda x: F.log_softmax(x, -1, dtype=FP32),
    "log-torch": lambda x: torch.log_softmax(x, -1, FP32),
    "log-method": lambda x: x.log_softmax(-1, dtype=FP32),
}


@pytest.mark.parametrize("name", SOFTMAXES)
@pytest.mark.parametrize(
    ("dtype", "made"), [(FP16, [(4000, "float32")]), (BF16, [(4000, "float32"), (4000, "float32")])]
)
def test_only_float16_goes_into_float32_without_a_copy(
    name: str, dtype: torch.dtype, made: list[tuple[int, str]]
) -> None:
    def build() -> Step:
        x = torch.empty(10, 100, dtype=dtype)
        return lambda: SOFTMAXES[name](x)

    assert sizes(made_in_step(trace_step(build))) == made


def test_a_softmax_without_a_dtype_stays_in_its_own() -> None:
    def build() -> Step:
        x = torch.empty(10, 100, dtype=FP16)
        return lambda: [F.softmax(x, -1), torch.softmax(x, 1), x.log_softmax(0)]

    assert sizes(made_in_step(trace_step(build))) == [(2000, "float16")] * 3


def test_real_tensors_are_left_alone() -> None:
    values: list[Tensor] = []

    def build() -> Step:
        x = torch.tensor([[1.0, 3.0]], dtype=FP16, device="cpu")
        return lambda: values.extend(
            [F.softmax(x, -1, dtype=FP32), F.rms_norm(x.float(), (2,)), F.dropout(x, 1.0)]
        )

    trace_step(build)
    assert values[0].tolist() == [pytest.approx([0.1192, 0.8808], abs=1e-4)]
    assert values[1].tolist() == [pytest.approx([0.4472, 1.3416], abs=1e-4)]
    assert values[2].tolist() == [[0.0, 0.0]]


def test_rms_norm_keeps_one_float32_number_a_row_and_no_intermediate() -> None:
    def build() -> Step:
        norm, x = torch.nn.RMSNorm(64, dtype=BF16), torch.empty(10, 64, dtype=BF16, requires_grad=True)

        def step() -> None:
            out = norm(x)
            out.neg()
            backward_of(out)

        return step

    trace = trace_step(build)
    forward = [s for s in made_in_step(trace) if s.site.phase == "forward" and "neg" not in s.site.op]
    assert sizes(forward) == [(1280, "bfloat16"), (40, "float32"), (1280, "bfloat16")]
    backward = [s for s in made_in_step(trace) if s.site.phase == "backward"]
    assert sizes(backward) == [(1280, "bfloat16"), (128, "bfloat16")]


def two_steps(make: Callable[[Any], torch.optim.Optimizer], dtype: torch.dtype = BF16) -> list[Storage]:
    """Give what the second step of an optimizer makes, for parameters of 1,000 and 3,000 elements."""

    def build() -> Step:
        parameters = [torch.nn.Parameter(torch.empty(size, dtype=dtype)) for size in (1000, 3000)]
        gradients = [torch.empty_like(parameter) for parameter in parameters]
        optimizer = make(parameters)

        def step() -> None:
            for parameter, gradient in zip(parameters, gradients, strict=True):
                parameter.grad = gradient
            optimizer.step()
            torch.empty(7)

        return step

    trace = trace_step(build, times=2)
    first_end = next(s.id for s in trace.storages if s.born_at >= 0 and s.shape == (7,))
    return [s for s in trace.storages if s.id > first_end and s.shape != (7,)]


def test_adamw_takes_the_foreach_path_with_a_list_of_temporaries() -> None:
    made = two_steps(lambda p: torch.optim.AdamW(p, 1e-4))
    assert {storage.site.op.split(".")[1] for storage in made} == {"_foreach_sqrt"}
    assert sizes(made) == [(2000, "bfloat16"), (6000, "bfloat16")]
    assert all(storage.died_at is not None for storage in made)


def test_fused_adamw_makes_nothing() -> None:
    assert two_steps(lambda p: torch.optim.AdamW(p, 1e-4, fused=True)) == []


def test_sgd_makes_nothing() -> None:
    assert two_steps(lambda p: torch.optim.SGD(p, 1e-4)) == []


def test_adamw_one_by_one_has_one_temporary_at_a_time() -> None:
    made = two_steps(lambda p: torch.optim.AdamW(p, 1e-4, foreach=False), FP32)
    assert {storage.bytes for storage in made} == {4000, 12_000}
    assert max(storage.id for storage in made if storage.bytes == 4000) < min(
        storage.id for storage in made if storage.bytes == 12_000
    )


@pytest.mark.parametrize(("fused", "kept"), [(False, [2000, 2000]), (True, [4, 2000, 2000])])
def test_adamw_keeps_two_states_a_parameter_and_its_count_on_the_device_if_fused(
    fused: bool, kept: list[int]
) -> None:
    def build() -> Step:
        parameter = torch.nn.Parameter(torch.empty(1000, dtype=BF16))
        optimizer = torch.optim.AdamW([parameter], 1e-4, fused=fused)

        def step() -> None:
            parameter.grad = torch.empty_like(parameter)
            optimizer.step()
            optimizer.zero_grad()

        return step

    trace = trace_step(build, times=3)
    assert [storage.bytes for storage in made_in_step(trace) if storage.died_at is None] == kept


def test_clipping_takes_the_foreach_path() -> None:
    def build() -> Step:
        parameters = [torch.nn.Parameter(torch.empty(70_000)) for _ in range(3)]
        for parameter in parameters:
            parameter.grad = torch.empty_like(parameter)
        return lambda: torch.nn.utils.clip_grad_norm_(parameters, 1.0)

    trace = trace_step(build)
    assert len(ops_named(trace, "_foreach_norm")) == len(ops_named(trace, "_foreach_mul_")) == 1
    partial = [s.bytes for s in made_by(trace, "_foreach_norm") if s.category == "temporaries"]
    assert partial == [3 * 2 * 4]
