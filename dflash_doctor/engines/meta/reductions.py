"""The staging memory of a reduction kernel, where it splits one output over several blocks.

Source: aten/src/ATen/native/cuda/Reduce.cuh (`setReduceConfig`, `global_memory_size`).
"""

from dataclasses import dataclass

import torch

from dflash_doctor.engines.meta.device import Device

MAX_THREADS = 512
WARP = 32
MIN_VALUES, MAX_VALUES = 16, 256


@dataclass(frozen=True, slots=True)
class _Layout:
    """A reduction's dimensions as (size, stride in elements), neighbours joined, fastest first."""

    reduced: list[tuple[int, int]]
    kept: list[tuple[int, int]]


_WITH_INDICES = frozenset({"argmax", "argmin", "std", "var", "std_mean", "var_mean"})
_EXTREMES = frozenset({"amax", "amin", "max", "min"})


def accumulator_bytes(op: str, source: torch.Tensor, outputs: list[torch.Tensor]) -> int:
    """Give the bytes of one partial result (`arg_t` of ReduceOps: 16 are a pair, or Welford's four)."""
    if op in _WITH_INDICES or (op in _EXTREMES and len(outputs) == 2):
        return 16
    if op in ("any", "all"):
        return 1
    if op in _EXTREMES:
        return source.element_size()
    return 8 if outputs[0].element_size() == 8 else 4


def reduction_buffers(
    source: torch.Tensor, dims: list[int], device: Device, partial: int = 4
) -> tuple[int, ...]:
    """Give the bytes of the partial results and of the semaphores; empty where one block is enough.

    `dims` are the reduced dimensions, all non-negative; `partial` is the size of one partial result.
    """
    if source.numel() == 0 or source.dim() == 0:
        return ()
    layout = _layout(source, dims)
    outputs = _product(layout.kept)
    inputs = source.numel() // outputs
    on_fastest = not layout.kept or (bool(layout.reduced) and layout.reduced[0][1] < layout.kept[0][1])
    dim0, dim1 = (inputs, outputs) if on_fastest else (outputs, inputs)
    fastest = (layout.reduced if on_fastest and layout.reduced else layout.kept or [(1, 1)])[0][1]
    vector = 1
    if fastest == 1 and on_fastest and dim0 >= 128 and len(layout.reduced) == 1:
        dim0 //= 4
    elif fastest == 1 and not on_fastest:
        vector = _output_vector(layout)
        dim0 //= vector
    width, height = _block(dim0, dim1, vector)
    counts = _split(inputs, outputs, on_fastest, vector, width, height, device)
    return (partial * counts[0], 4 * counts[1]) if counts else ()


def _split(
    inputs: int, outputs: int, on_fastest: bool, vector: int, width: int, height: int, device: Device
) -> tuple[int, int] | None:
    """Count the partial results and the semaphores; None where one block reduces a whole output."""
    step_input, step_output = (width, 1) if on_fastest else (1, width)
    across_warps = -(-inputs // step_input) >= min(height * 16, MAX_VALUES)
    if across_warps:
        step_input *= height
    else:
        step_output *= height
    values = -(-inputs // step_input)
    grid = -(-(outputs // vector) // step_output)
    target = device.num_multiprocessors * (device.threads_per_multiprocessor // (width * height))
    if not across_warps or values < MAX_VALUES or grid > target:
        return None
    most, least = -(-values // MIN_VALUES), -(-values // MAX_VALUES)
    blocks = min(max(-(-target // grid), least), most)
    if blocks <= 1:
        return None
    return outputs * blocks * (1 if on_fastest else width * vector), grid


def _layout(source: torch.Tensor, dims: list[int]) -> _Layout:
    groups: dict[bool, list[tuple[int, int]]] = {True: [], False: []}
    for dim, (size, stride) in enumerate(zip(source.shape, source.stride(), strict=True)):
        if size > 1:
            groups[dim in dims].append((size, stride))
    return _Layout(_joined(groups[True]), _joined(groups[False]))


def _joined(dims: list[tuple[int, int]]) -> list[tuple[int, int]]:
    joined: list[tuple[int, int]] = []
    for size, stride in sorted(dims, key=lambda dim: dim[1]):
        if joined and joined[-1][0] * joined[-1][1] == stride:
            joined[-1] = (joined[-1][0] * size, joined[-1][1])
        else:
            joined.append((size, stride))
    return joined


def _product(dims: list[tuple[int, int]]) -> int:
    total = 1
    for size, _ in dims:
        total *= size
    return total


def _output_vector(layout: _Layout) -> int:
    vector = 4
    numbers = [layout.kept[0][0], *(stride for _, stride in layout.reduced + layout.kept[1:])]
    for number in numbers:
        while number % vector:
            vector //= 2
    return vector


def _block(dim0: int, dim1: int, vector: int) -> tuple[int, int]:
    most = MAX_THREADS // vector
    size0, size1 = (_power(dim) if dim < most else most for dim in (dim0, dim1))
    width = min(size0, WARP)
    height = min(size1, most // width)
    return min(size0, most // height), height


def _power(number: int) -> int:
    return 1 << (max(1, number).bit_length() - 1)
