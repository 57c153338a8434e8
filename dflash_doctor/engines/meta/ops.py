"""What an op does with its arguments, read from its schema once."""

from dataclasses import dataclass
from typing import Any

import torch

_WRITE_ONLY = frozenset(
    {
        "copy_", "fill_", "zero_", "normal_", "uniform_", "random_", "bernoulli_", "_foreach_copy_",
        "_foreach_zero_",
    }
)  # fmt: skip
_PRODUCTS = frozenset(
    {"mm", "addmm", "bmm", "baddbmm", "addbmm", "addmv", "mv", "_addmm_activation", "linear", "_int_mm"}
)  # fmt: skip
_VALUE_READS = frozenset({"_local_scalar_dense", "item", "equal", "is_nonzero"})
_VALUE_SHAPES = frozenset(
    {
        "nonzero", "masked_select", "_unique2", "unique_dim", "unique_consecutive", "repeat_interleave",
        "bincount",
    }
)  # fmt: skip
_ROW_PICKERS = frozenset({"index", "index_select", "gather", "embedding", "take"})
_MODELLED_NAMESPACES = frozenset({"aten", "prims", "profiler"})
_UNMODELLED = frozenset(
    {
        "sort", "topk", "kthvalue", "median", "mode", "_unique2", "unique_dim", "unique_consecutive", "histc",
        "bincount", "multinomial", "_grouped_mm", "_scaled_mm", "_scaled_grouped_mm", "segment_reduce",
        "_linalg_svd", "_linalg_eigh", "linalg_qr", "linalg_eig", "linalg_lu_factor_ex", "linalg_lstsq",
        "_fft_r2c", "_fft_c2r", "_fft_c2c", "_cdist_forward", "_ctc_loss", "_cudnn_rnn", "grid_sampler_2d",
    }
)  # fmt: skip
"""Ops of which the CUDA kernels are known to need scratch that is not modelled here."""


@dataclass(frozen=True, slots=True)
class OpInfo:
    """The memory behaviour of one op."""

    name: str
    base: str
    """The name without namespace and overload."""
    is_view: bool
    mutates: bool
    write_only: bool
    is_product: bool
    reads_value: bool
    makes_value_shape: bool
    picks_rows: bool
    is_unmodelled: bool
    is_composite: bool
    """Made of other ops everywhere; a mode sees such an op whole only for tensors of inference mode."""


_infos: dict[Any, OpInfo] = {}


def info_of(func: Any) -> OpInfo:
    """Look an op up, reading its schema the first time."""
    known = _infos.get(func)
    if known is None:
        known = _infos[func] = _read_schema(func)
    return known


def _read_schema(func: Any) -> OpInfo:
    name = str(func)
    parts = name.split(".")
    base = parts[1] if len(parts) > 1 else name
    schema = func._schema
    mutates = any(a.alias_info is not None and a.alias_info.is_write for a in schema.arguments)
    is_view = any(r.alias_info is not None and not r.alias_info.is_write for r in schema.returns)
    return OpInfo(
        name=name,
        base=base,
        is_view=(is_view or base == "_unsafe_view") and not mutates,
        mutates=mutates,
        write_only=base in _WRITE_ONLY,
        is_product=base in _PRODUCTS,
        reads_value=base in _VALUE_READS,
        makes_value_shape=base in _VALUE_SHAPES and (base != "repeat_interleave" or "self_int" not in name),
        picks_rows=base in _ROW_PICKERS,
        is_unmodelled=base in _UNMODELLED or parts[0] not in _MODELLED_NAMESPACES,
        is_composite=_has_kernel(func, "CompositeImplicitAutograd") and not _has_kernel(func, "CPU"),
    )


def _has_kernel(func: Any, key: str) -> bool:
    return torch._C._dispatch_has_kernel_for_dispatch_key(func.name(), key)


def tensors_in(value: Any, into: list[torch.Tensor]) -> list[torch.Tensor]:
    """Collect the tensors of nested lists and tuples, in order."""
    if isinstance(value, torch.Tensor):
        into.append(value)
    elif isinstance(value, (list, tuple)):
        for item in value:
            tensors_in(item, into)
    return into


def distinct_elements(tensor: torch.Tensor) -> int:
    """Count the elements that a view really touches; expanded dimensions count once."""
    total = 1
    for size, stride in zip(tensor.shape, tensor.stride(), strict=True):
        if stride != 0:
            total *= size
    return total
