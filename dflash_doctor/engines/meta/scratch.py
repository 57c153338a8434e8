"""What CUDA kernels allocate for themselves: scratch that no Python code ever sees.

Each model follows the source of PyTorch's own kernel, named beside it, and replays its allocations in
their order. Meta tensors show only the outputs of an op; these are the rest.
"""

import functools
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import torch

from dflash_doctor.engines.meta.device import Device
from dflash_doctor.engines.meta.norms import norm_parts
from dflash_doctor.engines.meta.ops import tensors_in
from dflash_doctor.engines.meta.reductions import accumulator_bytes, reduction_buffers

_WITH_ONE_DIM = frozenset({"argmax", "argmin", "max", "min", "any", "all"})
_REDUCTIONS = _WITH_ONE_DIM | {"sum", "mean", "nansum", "amax", "amin", "std", "var", "linalg_vector_norm"}


@dataclass(frozen=True, slots=True)
class Call:
    """One op as a scratch model sees it, with the three things that a kernel does to memory."""

    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    outputs: list[torch.Tensor]
    device: Device
    take: Callable[[int, str], int]
    """Allocate scratch of so many bytes and this dtype; what is not dropped lives to the op's end."""
    drop: Callable[[int], None]
    """Free scratch."""
    give: Callable[..., None]
    """Allocate the op's outputs, or only the first so many of them."""
    inputs: list[torch.Tensor] = field(default_factory=list)

    def copy(self, tensor: torch.Tensor) -> int:
        """Allocate a copy of a tensor."""
        return self.take(num_bytes(tensor), dtype_of(tensor))


def num_bytes(tensor: torch.Tensor) -> int:
    """Give the bytes of a tensor's elements."""
    return tensor.numel() * tensor.element_size()


def dtype_of(tensor: torch.Tensor) -> str:
    """Name a tensor's dtype."""
    return str(tensor.dtype)[6:]


def _is_blas_ready(tensor: torch.Tensor) -> bool:
    """Say whether cuBLAS can take a matrix as it lies (`prepare_matrix_for_cublas`, Blas.cpp)."""
    rows, columns = tensor.shape[-2:]
    row_stride, column_stride = tensor.stride()[-2:]
    row_major = column_stride == 1 and row_stride >= max(1, columns)
    column_major = row_stride == 1 and column_stride >= max(1, rows)
    return row_major or column_major


def _product(call: Call) -> None:
    call.give()
    for matrix in [t for t in call.inputs if t.dim() >= 2][-2:]:
        if not _is_blas_ready(matrix):
            call.copy(matrix)


def _foreach_norm(call: Call) -> None:
    """One float per 65,536-element chunk of the longest tensor (ForeachReduceOp.cu)."""
    tensors = tensors_in(call.args[0], [])
    chunks = max((-(-t.numel() // 65_536) for t in tensors), default=0)
    call.take(len(tensors) * chunks * 4, "float32")


def _sort_bytes(count: int) -> int:
    """Size a radix sort of int64 pairs: two buffers and 1 KiB a tile (cub, DeviceRadixSort)."""
    return 2 * (-(-count * 8 // 256) * 256) + 4607 + 1024 * -(-count // 4608) if count > 2048 else 1


def _embedding_backward(call: Call) -> None:
    """Sort the indices, then sum segments in float32 (Embedding.cu, EmbeddingBackwardKernel.cu)."""
    grad, indices, num_weights = call.args[0], call.args[1], call.args[2]
    count, width = indices.numel(), grad.shape[-1]
    if count <= 3072:
        return
    integers = count * indices.element_size()
    for _ in range(2):
        call.take(integers, "int64")
    order, sort = call.take(integers, "int64"), call.take(_sort_bytes(count), "uint8")
    call.drop(sort)
    call.drop(order)
    call.give()
    call.take(integers, "int64")
    call.take(8, "int64")
    unique, scan = call.take(integers, "int64"), call.take(1536, "uint8")
    call.drop(scan)
    call.drop(unique)
    segments = min(count, num_weights)
    for _ in range(2):
        call.take(segments * indices.element_size(), "int64")
    call.drop(call.take(1536, "uint8"))
    call.take(8, "int64")
    partial = count // 10 + segments
    call.take(partial * indices.element_size(), "int64")
    call.take(partial * width * 4, "float32")


def _index_put(call: Call) -> None:
    """Sort the linear indices where rows of one index add up (Indexing.cu, `index_put_with_sort_kernel`)."""
    call.give()
    indices = [t for t in call.args[1] if isinstance(t, torch.Tensor)]
    adds_up = call.args[3] if len(call.args) > 3 else call.kwargs.get("accumulate", False)
    if not adds_up or not indices:
        return
    count = torch.broadcast_shapes(*(index.shape for index in indices)).numel()
    for _ in range(4):
        call.take(count * 8, "int64")
    call.take(_sort_bytes(count), "uint8")


def _convolution(call: Call) -> None:
    """A convolution makes its input contiguous; depthwise needs nothing more (Convolution.cpp)."""
    for tensor in call.inputs:
        if not tensor.is_contiguous():
            call.copy(tensor)


def _cumsum(call: Call) -> None:
    """Convert the input to the result's dtype; a scan over all elements is cub's (ScanKernels.cu)."""
    source, out = call.args[0], call.outputs[0]
    if source.dtype != out.dtype:
        call.copy(out)
    dim = call.args[1] if len(call.args) > 1 else call.kwargs["dim"]
    if source.dim() and source.shape[dim] == source.numel():
        call.give()
        call.take(1279 if out.element_size() < 8 else 2815, "uint8")


def _softmax_backward(call: Call) -> None:
    """The product of gradient and output comes first, in memory of its own (SoftMax.cu)."""
    call.give()
    call.copy(call.args[0])


def _log_softmax_backward(call: Call) -> None:
    """A gradient that does not lie dense is copied (SoftMax.cu)."""
    call.give()
    if not call.args[0].is_contiguous():
        call.copy(call.args[0])


_HALVES = (torch.float16, torch.bfloat16)
"""Dtypes that a reduction to float32 reads as they are."""


def _reduction(op: str, call: Call) -> None:
    """Stage a reduction of many rows to few outputs, which is split over blocks, in global memory."""
    call.give()
    source, out = call.args[0], call.outputs[0]
    if op in ("sum", "prod") and not source.is_floating_point() and source.dtype != out.dtype:
        call.take(source.numel() * out.element_size(), dtype_of(out))
    _stage(op, call)


def _stage(op: str, call: Call) -> list[int]:
    source = call.args[0]
    axes = _positive(_reduced(op, call), source.dim())
    size = accumulator_bytes(op, source, call.outputs)
    return [call.take(each, "uint8") for each in reduction_buffers(source, axes, call.device, size)]


def _reduced(op: str, call: Call) -> Iterable[int]:
    dims = next((arg for arg in call.args[1:] if isinstance(arg, (list, tuple))), None)
    if dims is None and op in _WITH_ONE_DIM and len(call.args) > 1:
        dims = call.args[1]
    dims = call.kwargs.get("dim") if dims is None else dims
    if isinstance(dims, int):
        return [dims]
    return dims if dims else range(call.args[0].dim())


def _layer_norm_backward(call: Call) -> None:
    """Sum the weight's and the bias's gradients in parts where rows are many (layer_norm_kernel.cu)."""
    call.give()
    source, mean, wanted = call.args[1], call.args[3], call.args[7]
    shape = norm_parts(mean.numel(), source.numel() // max(1, mean.numel()), call.device)
    if shape is None or not any(wanted[1:]):
        return
    parts = torch.empty(shape, dtype=source.dtype, device="meta")
    for _ in filter(None, wanted[1:]):
        call.copy(parts)
    call.copy(parts[0])
    for size in reduction_buffers(parts, [0], call.device):
        call.take(size, "uint8")


def _logsumexp(call: Call) -> None:
    """Find the maxima, then make the exponentials in full (ReduceOps.cpp, `logsumexp_out_impl`)."""
    source = call.args[0]
    call.copy(call.outputs[0])
    for staged in reversed(_stage("amax", call)):
        call.drop(staged)
    call.take(source.numel() * call.outputs[0].element_size(), dtype_of(call.outputs[0]))
    call.give()
    _stage("sum", call)


def _pointwise_loss(call: Call) -> None:
    """Make the losses one by one before their mean or sum (Loss.cpp, PointwiseOps)."""
    call.give()
    reduction = call.args[2] if len(call.args) > 2 else call.kwargs.get("reduction", 1)
    if reduction:
        losses = torch.broadcast_shapes(call.args[0].shape, call.args[1].shape).numel()
        call.take(losses * call.args[0].element_size(), dtype_of(call.args[0]))
        if losses == call.args[0].numel():
            for size in reduction_buffers(call.args[0], list(range(call.args[0].dim())), call.device):
                call.take(size, "uint8")


def _positive(dims: Iterable[int], rank: int) -> list[int]:
    return [dim % rank for dim in dims] if rank else []


MODELS: dict[str, Callable[[Call], None]] = {
    "mm": _product,
    "addmm": _product,
    "bmm": _product,
    "baddbmm": _product,
    **{op: functools.partial(_reduction, op) for op in _REDUCTIONS},
    "logsumexp": _logsumexp,
    "native_layer_norm_backward": _layer_norm_backward,
    "mse_loss": _pointwise_loss,
    "smooth_l1_loss": _pointwise_loss,
    "huber_loss": _pointwise_loss,
    "_softmax_backward_data": _softmax_backward,
    "_log_softmax_backward_data": _log_softmax_backward,
    "_foreach_norm": _foreach_norm,
    "embedding_dense_backward": _embedding_backward,
    "cumsum": _cumsum,
    "index_put": _index_put,
    "index_put_": _index_put,
    "convolution": _convolution,
    "convolution_backward": _convolution,
}
