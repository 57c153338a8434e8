"""Scratch of the flash and memory-efficient attention kernels.

Sources: flash_attn/flash_api.cpp (`set_params_splitkv`, `mha_bwd`), mem_eff_attention/kernel_forward.h
and kernel_backward.h (`workspace_size`), cuda/attention_backward.cu, of PyTorch 2.14.
"""

from dataclasses import dataclass
from math import ceil

from dflash_doctor.engines.meta.device import Device
from dflash_doctor.engines.meta.scratch import Call, dtype_of

HALF_WIDTH = 2


def flash_forward(call: Call) -> None:
    """Split keys over blocks where the grid alone would not fill the device; float32 partial outputs."""
    query, key = call.args[0], call.args[1]
    batch, heads, rows, width = query.shape
    if len(call.args) > 3 and call.args[3]:
        return
    splits = _num_splits(batch * heads * ceil(rows / 64), key.shape[2], width, call.device)
    if splits > 1:
        call.give(2)
        partial = splits * batch * heads * rows
        call.take(partial * 4, "float32")
        call.take(partial * _rounded_width(width) * 4, "float32")


def _num_splits(blocks: int, keys: int, width: int, device: Device) -> int:
    """Choose the number of key splits (`num_splits_heuristic`)."""
    processors = device.num_multiprocessors * 2
    if blocks >= 0.8 * processors:
        return 1
    per_block = 256 if width <= 64 else (128 if width <= 128 else 64)
    key_blocks = ceil(keys / per_block)
    most = min(128, processors, key_blocks)

    def is_eligible(splits: int) -> bool:
        return splits == 1 or ceil(key_blocks / splits) != ceil(key_blocks / (splits - 1))

    def efficiency(splits: int) -> float:
        waves = blocks * splits / processors
        return waves / ceil(waves)

    eligible = [splits for splits in range(1, most + 1) if is_eligible(splits)]
    best = max((efficiency(splits) for splits in eligible), default=0.0)
    return next((splits for splits in eligible if efficiency(splits) >= 0.85 * best), 1)


def _rounded_width(width: int) -> int:
    return ceil(width / 32) * 32 if width <= 128 else ceil(width / 64) * 64


def flash_backward(call: Call) -> None:
    """Row sums and a float32 query gradient; expanded key and value gradients where heads are grouped."""
    grad, query, key = call.args[0], call.args[1], call.args[2]
    batch, heads, rows, width = query.shape
    rounded = ceil(rows / 128) * 128
    if not grad.transpose(1, 2).is_contiguous():
        call.copy(grad)
    call.give()
    call.take(batch * heads * rounded * 4, "float32")
    call.take(batch * rounded * heads * _rounded_width(width) * 4, "float32")
    if key.shape[1] != heads:
        for _ in range(2):
            call.take(batch * key.shape[2] * heads * width * key.element_size(), dtype_of(key))


def efficient_forward(call: Call) -> None:
    """A float32 output where a head is wider than one block of keys and the output is half."""
    query, value = call.args[0], call.args[2]
    batch, heads, rows, _ = query.shape
    if query.element_size() <= HALF_WIDTH and value.shape[-1] > 128:
        call.give()
        call.take(batch * rows * heads * value.shape[-1] * 4, "float32")


@dataclass(frozen=True, slots=True)
class _Kernel:
    """One cutlass backward kernel: block sizes, the widest head, and the shared memory that it needs."""

    rows: int
    keys: int
    max_width: int
    shared_kib: int
    aligned: bool = False
    dropout: bool = False


_HALF_KERNELS = (
    _Kernel(64, 64, 32, 48),
    _Kernel(64, 64, 64, 64),
    _Kernel(128, 128, 128, 160),
    _Kernel(64, 64, 128, 96),
    _Kernel(128, 64, 65536, 99),
    _Kernel(64, 64, 65536, 96),
)
_FLOAT_KERNELS = (
    _Kernel(64, 64, 32, 48),
    _Kernel(64, 64, 64, 64),
    _Kernel(128, 64, 128, 120),
    _Kernel(64, 64, 128, 96),
    _Kernel(128, 64, 65536, 120),
    _Kernel(64, 64, 65536, 96),
)


def efficient_backward(call: Call) -> None:
    """Row sums, float32 staging for the gradients, and full-head gradients where heads are grouped."""
    grad, query, key, value = call.args[:4]
    batch, heads, rows, width = query.shape
    keys, value_width = key.shape[2], value.shape[-1]
    half = query.element_size() <= HALF_WIDTH
    if not grad.transpose(1, 2).is_contiguous():
        call.copy(grad)
    call.give()
    if key.shape[1] != heads:
        for size in (width, value_width):
            call.take(batch * keys * heads * size * key.element_size(), dtype_of(key))
    sums = _row_sums(call, half, batch * heads * rows, value_width)
    call.take(_staging_bytes(call.device, half, batch * heads, (rows, keys), (width, value_width)), "uint8")
    call.drop(sums)


def _row_sums(call: Call, half: bool, rows: int, width: int) -> int:
    if half:
        return call.take(rows * 4, "float32")
    product = call.take(rows * width * 4, "float32")
    sums = call.take(rows * 4, "float32")
    transposed = call.take(rows * 4, "float32")
    call.drop(sums)
    call.drop(product)
    return transposed


def _staging_bytes(
    device: Device, half: bool, heads: int, lengths: tuple[int, int], widths: tuple[int, int]
) -> int:
    """Size the workspace; `heads` counts them over the batch, lengths and widths are (query, key)."""
    (rows, keys), (width, value_width) = lengths, widths
    kernel = _choose(half, max(widths), device)
    staged = half and kernel.max_width > kernel.rows
    splits = ceil(keys / kernel.keys)
    if heads >= 256 and keys <= 2 * kernel.keys:
        splits = 1
    if staged:
        splits = min(splits, 200 // heads)
    elements = ceil(rows / kernel.rows) * ceil(width / kernel.keys) * (kernel.rows * kernel.keys + 4)
    if staged:
        columns = (ceil(width / kernel.rows) + ceil(value_width / kernel.rows)) * kernel.rows
        elements += max(splits, 1) * kernel.keys * columns
    return heads * ceil(elements / 4) * 4 * 4


def _choose(half: bool, width: int, device: Device) -> _Kernel:
    kernels = _HALF_KERNELS if half else _FLOAT_KERNELS
    return next(k for k in kernels if k.max_width >= width and k.shared_kib <= device.shared_kib)


MODELS = {
    "_scaled_dot_product_flash_attention": flash_forward,
    "_scaled_dot_product_flash_attention_backward": flash_backward,
    "_scaled_dot_product_efficient_attention": efficient_forward,
    "_scaled_dot_product_efficient_attention_backward": efficient_backward,
}
