"""What CUDA kernels allocate for themselves: scratch that no Python code ever sees.

Each entry follows the source of PyTorch's own kernel, named beside it. Meta tensors show only the
outputs of an op; these are the rest.
"""

from collections.abc import Callable
from typing import Literal

import torch

from dflash_doctor.engines.meta import attention_scratch
from dflash_doctor.engines.meta.device import Call, Temporary, num_bytes
from dflash_doctor.engines.meta.ops import OpInfo, tensors_in


def temporaries_of(info: OpInfo, call: Call) -> list[Temporary]:
    """List what the CUDA kernel of this op would allocate beside its outputs."""
    model = _MODELS.get(info.base)
    return model(call) if model is not None else []


def _dtype(tensor: torch.Tensor) -> str:
    return str(tensor.dtype)[6:]


def _copy_of(tensor: torch.Tensor, when: Literal["before", "after"] = "before") -> Temporary:
    return Temporary(num_bytes(tensor), _dtype(tensor), when)


def _blas_ready(tensor: torch.Tensor) -> bool:
    """Say whether cuBLAS can take a matrix as it lies (`prepare_matrix_for_cublas`, Blas.cpp)."""
    rows, columns = tensor.shape[-2:]
    row_stride, column_stride = tensor.stride()[-2:]
    row_major = column_stride == 1 and row_stride >= max(1, columns)
    column_major = row_stride == 1 and column_stride >= max(1, rows)
    return row_major or column_major


def _products(call: Call) -> list[Temporary]:
    matrices = [t for t in call.inputs if t.dim() >= 2][-2:]
    return [_copy_of(t, "after") for t in matrices if not _blas_ready(t)]


def _foreach_norm(call: Call) -> list[Temporary]:
    """One float per 65,536-element chunk of the longest tensor (ForeachReduceOp.cu)."""
    tensors = tensors_in(call.args[0], [])
    chunks = max((-(-t.numel() // 65_536) for t in tensors), default=0)
    return [Temporary(len(tensors) * chunks * 4, "float32", "before")]


def _embedding_backward(call: Call) -> list[Temporary]:
    """Sort the indices, then sum segments in float32 (Embedding.cu, EmbeddingBackwardKernel.cu)."""
    grad, indices, num_weights = call.args[0], call.args[1], call.args[2]
    count, width = indices.numel(), grad.shape[-1]
    if count <= 3072:
        return []
    integers = count * indices.element_size()
    segments = min(count, num_weights)
    partial = count // 10 + segments
    scratch = [Temporary(integers, "int64", "before")] * 2
    scratch += [Temporary(integers, "int64")] * 2
    scratch += [Temporary(partial * indices.element_size(), "int64")]
    if grad.dtype in (torch.bfloat16, torch.float16, torch.float32):
        scratch.append(Temporary(partial * (-(-width // 32) * 32) * 4, "float32"))
    return scratch


def _convolution(call: Call) -> list[Temporary]:
    """A convolution makes its input contiguous; depthwise needs nothing more (Convolution.cpp)."""
    source, weight = call.args[0], call.args[1]
    return [_copy_of(t) for t in (source, weight) if not t.is_contiguous()]


def _cumsum(call: Call) -> list[Temporary]:
    """Cumulative sums first convert their input to the dtype of the result (ReduceOps.cpp)."""
    source, out = call.args[0], call.outputs[0]
    return [] if source.dtype == out.dtype else [Temporary(num_bytes(out), _dtype(out))]


_MODELS: dict[str, Callable[[Call], list[Temporary]]] = {
    "mm": _products,
    "addmm": _products,
    "bmm": _products,
    "baddbmm": _products,
    "_foreach_norm": _foreach_norm,
    "embedding_dense_backward": _embedding_backward,
    "cumsum": _cumsum,
    "convolution": _convolution,
    "_scaled_dot_product_flash_attention": attention_scratch.flash_forward,
    "_scaled_dot_product_flash_attention_backward": attention_scratch.flash_backward,
    "_scaled_dot_product_efficient_attention": attention_scratch.efficient_forward,
    "_scaled_dot_product_efficient_attention_backward": attention_scratch.efficient_backward,
}
