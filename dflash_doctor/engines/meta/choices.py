"""Have torch choose on meta tensors what it would choose on CUDA tensors."""

import functools
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest.mock import patch

import torch

from dflash_doctor.engines.meta.attention import scaled_dot_product_attention
from dflash_doctor.engines.meta.device import Device
from dflash_doctor.engines.meta.norms import fused_rms_norm

_plain_rms_norm, _plain_dropout = torch.rms_norm, torch.nn.functional.dropout


def _widening(plain: Callable[..., Any], op: Callable[..., Any]) -> Callable[..., Any]:
    """Build a softmax that makes no float32 copy of a float16 input on CUDA (SoftMax.cpp).

    It takes the arguments of the function in `torch` and of that in `torch.nn.functional`, which has the
    number of a stack level before the dtype.
    """

    def softmax(
        input: torch.Tensor, dim: int | None = None, *rest: Any, dtype: torch.dtype | None = None, **more: Any
    ) -> Any:
        axis = -1 if dim is None else dim
        dtype = dtype or next((value for value in rest if isinstance(value, torch.dtype)), None)
        if input.dtype == torch.float16 and dtype == torch.float32 and input.is_meta:
            return op(input, axis, True)
        more.pop("_stacklevel", None)
        return plain(input, axis, dtype=dtype, **more)

    return softmax


_softmax = _widening(torch.softmax, torch.ops.aten._softmax)
_log_softmax = _widening(torch.log_softmax, torch.ops.aten._log_softmax)


def _rms_norm(
    input: torch.Tensor, normalized_shape: Any, weight: torch.Tensor | None = None, eps: float | None = None,
    *, device: Device,
) -> torch.Tensor:  # fmt: skip
    """CUDA has one kernel for RMSNorm (`_fused_rms_norm`); meta would decompose it."""
    if not input.is_meta or (weight is not None and weight.dtype != input.dtype):
        return _plain_rms_norm(input, normalized_shape, weight, eps)
    return fused_rms_norm(input, normalized_shape, weight, device)


def _dropout(
    input: torch.Tensor, p: float = 0.5, training: bool = True, inplace: bool = False
) -> torch.Tensor:
    """CUDA keeps a boolean mask (`native_dropout`); elsewhere the noise has the input's dtype."""
    if not input.is_meta or not training or p in (0.0, 1.0) or inplace:
        return _plain_dropout(input, p, training, inplace)
    return torch.native_dropout(input, p, True)[0]


@contextmanager
def cuda_choices(device: Device) -> Iterator[None]:
    """Make optimizers, clipping, dropout, norms and attention choose as on CUDA while the context lasts."""
    devices = lambda: ["meta", "cuda"]  # noqa: E731
    attend = functools.partial(scaled_dot_product_attention, device=device)
    normalise = functools.partial(_rms_norm, device=device)
    instead: dict[str, Any] = {
        "torch.optim.optimizer._get_foreach_kernels_supported_devices": devices,
        "torch.utils._foreach_utils._get_foreach_kernels_supported_devices": devices,
        "torch.optim.optimizer._get_fused_kernels_supported_devices": devices,
        "torch.nn.functional.scaled_dot_product_attention": attend,
        "torch.nn.functional.dropout": _dropout,
        "torch.dropout": lambda input, p, train: _dropout(input, p, train),
        "torch.nn.functional.rms_norm": normalise,
        "torch.rms_norm": normalise,
        "torch.nn.functional.softmax": _softmax,
        "torch.softmax": _softmax,
        "torch.Tensor.softmax": _softmax,
        "torch.nn.functional.log_softmax": _log_softmax,
        "torch.log_softmax": _log_softmax,
        "torch.Tensor.log_softmax": _log_softmax,
    }
    with ExitStack() as stack:
        for name, function in instead.items():
            stack.enter_context(patch(name, function))
        yield
