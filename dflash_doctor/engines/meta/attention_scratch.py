"""Scratch of the flash and memory-efficient attention kernels.

Sources: flash_attn/flash_api.cpp (`set_params_splitkv`, `mha_bwd`), mem_eff_attention/kernel_forward.h
and kernel_backward.h (`workspace_size`), cuda/attention_backward.cu, of PyTorch 2.14.
"""

from dataclasses import dataclass
from math import ceil

from dflash_doctor.engines.meta.device import Call, Device, Temporary, num_bytes

HALF_WIDTH = 2


def flash_forward(call: Call) -> list[Temporary]:
    """Split keys over blocks where the grid alone would not fill the device; float32 partial outputs."""
    query, key = call.args[0], call.args[1]
    dropout_p = call.args[3] if len(call.args) > 3 else 0.0
    batch, heads, rows, width = query.shape
    if dropout_p:
        return []
    splits = _num_splits(batch * heads * ceil(rows / 64), key.shape[2], width, call.device)
    if splits <= 1:
        return []
    partial = splits * batch * heads * rows
    return [
        Temporary(partial * 4, "float32"),
        Temporary(partial * _rounded_width(width) * 4, "float32"),
    ]


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


def flash_backward(call: Call) -> list[Temporary]:
    """Row sums and a float32 query gradient; expanded key and value gradients where heads are grouped."""
    grad, query, key = call.args[0], call.args[1], call.args[2]
    batch, heads, rows, width = query.shape
    rounded = ceil(rows / 128) * 128
    scratch = [] if grad.transpose(1, 2).is_contiguous() else [Temporary(num_bytes(grad), when="before")]
    scratch += [
        Temporary(batch * heads * rounded * 4, "float32"),
        Temporary(batch * rounded * heads * _rounded_width(width) * 4, "float32"),
    ]
    if key.shape[1] != heads:
        scratch += [Temporary(batch * key.shape[2] * heads * width * key.element_size())] * 2
    return scratch


def efficient_forward(call: Call) -> list[Temporary]:
    """A float32 output where a head is wider than one block of keys and the output is half."""
    query, value = call.args[0], call.args[2]
    batch, heads, rows, _ = query.shape
    if query.element_size() > HALF_WIDTH or value.shape[-1] <= 128:
        return []
    return [Temporary(batch * rows * heads * value.shape[-1] * 4, "float32")]


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
    _Kernel(128, 64, 65536, 120),
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


def efficient_backward(call: Call) -> list[Temporary]:
    """Row sums, and float32 staging for the three gradients."""
    grad, query, key, value = call.args[:4]
    batch, heads, rows, width = query.shape
    keys, value_width = key.shape[2], value.shape[-1]
    half = query.element_size() <= HALF_WIDTH
    scratch = [] if grad.transpose(1, 2).is_contiguous() else [Temporary(num_bytes(grad), when="before")]
    sums = Temporary(batch * heads * rows * 4, "float32")
    scratch += [sums] if half else [Temporary(batch * heads * rows * value_width * 4, "float32"), sums, sums]
    kernel = _choose(half, max(width, value_width), call.device)
    staged = half and kernel.max_width > kernel.rows
    splits = ceil(keys / kernel.keys)
    if heads * batch >= 256 and keys <= 2 * kernel.keys:
        splits = 1
    if staged:
        splits = min(splits, 200 // (batch * heads))
    splits = max(splits, 1)
    query_part = ceil(rows / kernel.rows) * ceil(width / kernel.keys) * (kernel.rows * kernel.keys + 4)
    key_part = value_part = 0
    if staged:
        key_part = splits * kernel.keys * ceil(width / kernel.rows) * kernel.rows
        value_part = splits * kernel.keys * ceil(value_width / kernel.rows) * kernel.rows
    elements = ceil((query_part + key_part + value_part) / 4) * 4
    scratch.append(Temporary(batch * heads * elements * 4))
    if key.shape[1] != heads:
        scratch += [Temporary(batch * keys * heads * width * key.element_size())] * 2
    return scratch


def _choose(half: bool, width: int, device: Device) -> _Kernel:
    kernels = _HALF_KERNELS if half else _FLOAT_KERNELS
    return next(k for k in kernels if k.max_width >= width and k.shared_kib <= device.shared_kib)
