"""Which attention CUDA would run, by shape, dtype, mask and device."""

from typing import Any

import pytest
import torch
from torch.nn.functional import pad

from dflash_doctor.engines.meta.device import Device
from tests.doctor.engines.tracing import (
    A100,
    BLACKWELL,
    HOPPER,
    Step,
    backward_of,
    made_by,
    made_in_step,
    ops_named,
    trace_step,
)

TURING = Device(compute_capability=(7, 5), num_multiprocessors=40)
ADA = Device(compute_capability=(8, 9), num_multiprocessors=142)
FLASH, EFFICIENT, MATH = "flash", "efficient", "math"


def chosen(
    device: Device = A100, *, shape: tuple[int, ...] = (2, 4, 64, 64), dtype: torch.dtype = torch.bfloat16,
    keys: tuple[int, ...] | None = None, values: tuple[int, ...] | None = None, trains: bool = False,
    mask: torch.dtype | None = None, mask_trains: bool = False, **options: Any,
) -> str:  # fmt: skip
    """Name the kernel for queries of a shape [B, H, T, D]; keys and values are like them if not given."""

    def build() -> Step:
        query, key, value = (
            torch.empty(size, dtype=dtype, requires_grad=trains)
            for size in (shape, keys or shape, values or shape)
        )
        bias = None
        if mask is not None:
            lengths = (shape[-2], (keys or shape)[-2])
            bias = torch.empty(1, 1, *lengths, dtype=mask, requires_grad=mask_trains)
        attend = torch.nn.functional.scaled_dot_product_attention
        return lambda: attend(query, key, value, bias, **options)

    names = {op.site.op.split(".")[1] for op in trace_step(build, device=device).ops}
    if "_scaled_dot_product_flash_attention" in names:
        return FLASH
    return EFFICIENT if "_scaled_dot_product_efficient_attention" in names else MATH


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("device", [A100, ADA, HOPPER, BLACKWELL], ids=["8.0", "8.9", "9.0", "12.0"])
def test_half_precision_without_a_mask_is_flash(device: Device, dtype: torch.dtype) -> None:
    assert chosen(device, dtype=dtype, trains=True) == FLASH
    assert chosen(device, dtype=dtype, is_causal=True, dropout_p=0.1) == FLASH


def test_before_ampere_there_is_no_flash() -> None:
    assert chosen(TURING, dtype=torch.float16) == EFFICIENT


def test_float32_is_memory_efficient_and_float64_is_math() -> None:
    assert chosen(dtype=torch.float32, is_causal=True) == EFFICIENT
    assert chosen(dtype=torch.float64) == MATH


@pytest.mark.parametrize("mask", [torch.bool, torch.bfloat16])
def test_a_mask_is_memory_efficient(mask: torch.dtype) -> None:
    assert chosen(mask=mask) == EFFICIENT
    assert chosen(mask=mask, trains=True) == EFFICIENT


def test_a_mask_that_takes_a_gradient_is_memory_efficient() -> None:
    assert chosen(mask=torch.bfloat16, mask_trains=True, trains=True) == EFFICIENT


@pytest.mark.parametrize(
    ("width", "device", "trains", "dropout", "kernel"),
    [
        (256, A100, True, 0.1, FLASH),
        (256, BLACKWELL, False, 0.0, FLASH),
        (192, BLACKWELL, True, 0.1, FLASH),
        (200, BLACKWELL, True, 0.0, EFFICIENT),
        (224, ADA, True, 0.0, EFFICIENT),
        (256, ADA, True, 0.0, FLASH),
        (256, ADA, True, 0.1, EFFICIENT),
        (264, A100, False, 0.0, EFFICIENT),
    ],
)
def test_wide_heads_depend_on_the_device(
    width: int, device: Device, trains: bool, dropout: float, kernel: str
) -> None:
    assert chosen(device, shape=(1, 2, 64, width), trains=trains, dropout_p=dropout) == kernel


def test_values_of_another_width_are_memory_efficient() -> None:
    assert chosen(values=(2, 4, 64, 128)) == EFFICIENT


@pytest.mark.parametrize(
    ("width", "dtype", "kernel"),
    [
        (20, torch.bfloat16, MATH),
        (24, torch.bfloat16, EFFICIENT),
        (20, torch.float32, EFFICIENT),
        (22, torch.float32, MATH),
    ],
)
def test_memory_efficient_heads_are_whole_vectors_of_16_bytes(
    width: int, dtype: torch.dtype, kernel: str
) -> None:
    assert chosen(shape=(1, 2, 64, width), dtype=dtype, mask=dtype) == kernel


def test_flash_pads_a_width_to_a_multiple_of_8() -> None:
    assert chosen(shape=(1, 2, 64, 20)) == FLASH


def test_fewer_heads_of_keys_stay_flash() -> None:
    assert chosen(shape=(1, 8, 64, 64), keys=(1, 2, 64, 64), values=(1, 2, 64, 64), enable_gqa=True) == FLASH


def attention_of(length: int, mask: torch.dtype | None, *, trains: bool = False) -> Any:
    def build() -> Step:
        query = torch.empty(1, 2, length, 64, dtype=torch.bfloat16, requires_grad=trains)
        bias = torch.empty(1, 1, length, length, dtype=mask) if mask is not None else None
        attend = torch.nn.functional.scaled_dot_product_attention

        def step() -> None:
            out = attend(query, query, query, bias)
            if trains:
                backward_of(out)

        return step

    return trace_step(build, device=A100)


def test_flash_keeps_the_output_and_one_float32_number_a_row() -> None:
    made = made_by(attention_of(512, None), "_scaled_dot_product_flash_attention")
    outputs = [(s.bytes, s.dtype) for s in made if s.category == "activations" and s.bytes > 16]
    assert outputs == [(131_072, "bfloat16"), (4096, "float32")]


def test_memory_efficient_attention_keeps_row_sums_only_for_a_gradient() -> None:
    without, with_gradient = (attention_of(500, torch.bfloat16, trains=trains) for trains in (False, True))
    name = "_scaled_dot_product_efficient_attention"
    assert [s.bytes for s in made_by(without, name) if s.dtype == "float32"] == [0]
    assert [s.bytes for s in made_by(with_gradient, name) if s.dtype == "float32"] == [2 * 512 * 4]


def test_a_boolean_mask_becomes_one_that_is_added() -> None:
    trace = attention_of(512, torch.bool)
    assert [s.bytes for s in made_by(trace, "where")] == [512 * 512 * 2]
    assert ops_named(trace, "constant_pad_nd") == []


def test_a_mask_of_odd_length_is_padded_to_16_and_the_first_one_dies() -> None:
    trace = attention_of(500, torch.bool)
    (added,), (padded,) = made_by(trace, "where"), made_by(trace, "constant_pad_nd")
    (kernel,) = ops_named(trace, "_scaled_dot_product_efficient_attention")
    assert (added.bytes, padded.bytes) == (500 * 500 * 2, 500 * 512 * 2)
    assert added.died_at is not None and added.died_at < kernel.index


def test_no_kernel_makes_the_square_of_the_length() -> None:
    for trains in (False, True):
        assert all(s.bytes < 4096 * 4096 for s in made_in_step(attention_of(4096, None, trains=trains)))


def test_real_tensors_attend_as_they_do_elsewhere() -> None:
    query = torch.arange(24.0).view(1, 2, 3, 4) / 10
    outputs: list[torch.Tensor] = []

    def build() -> Step:
        mask = pad(torch.zeros(3, 2, device="cpu"), (0, 1), value=-1e9)
        return lambda: outputs.append(
            torch.nn.functional.scaled_dot_product_attention(query, query, query, mask)
        )

    trace_step(build)
    expected = torch.nn.functional.scaled_dot_product_attention(
        query, query, query, pad(torch.zeros(3, 2), (0, 1), value=-1e9)
    )
    assert torch.allclose(outputs[0], expected)
