"""Normalise by the root mean square without keeping float32 copies.

The numerics are those of transformers' `Qwen3RMSNorm`: float32 variance and scaling, cast back, times weight.
Plain autograd would keep the float32 input and two more tensors of its size; here a row keeps one float32.

Shape suffixes: N rows, C channels.
"""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

CHUNK_ELEMENTS = 16 * 2**20
"""Elements that are held in float32 at a time: 64 MiB."""


def _compute_dtype(dtype: torch.dtype) -> torch.dtype:
    return torch.float64 if dtype == torch.float64 else torch.float32


class _RMSNormFunction(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight_C: Tensor, eps: float) -> Tensor:
        x_NC = x.reshape(-1, x.shape[-1])
        out_NC = torch.empty_like(x_NC)
        rstd_N1 = x_NC.new_empty((x_NC.shape[0], 1), dtype=_compute_dtype(x.dtype))
        for rows in _chunks(x_NC):
            x32_nC = x_NC[rows].to(rstd_N1.dtype)
            torch.mean(x32_nC.pow(2), dim=-1, keepdim=True, out=rstd_N1[rows])
            rstd_N1[rows].add_(eps).rsqrt_()
            normed_nC = x32_nC.mul_(rstd_N1[rows]) if x32_nC.dtype != x.dtype else x32_nC * rstd_N1[rows]
            torch.mul(weight_C, normed_nC.to(x.dtype), out=out_NC[rows])
        ctx.save_for_backward(x, weight_C, rstd_N1)
        return out_NC.view(x.shape)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, Tensor | None, None]:
        x, weight_C, rstd_N1 = ctx.saved_tensors
        x_NC, grad_NC = x.reshape(-1, x.shape[-1]), grad.reshape(-1, x.shape[-1])
        needs_x, needs_weight = ctx.needs_input_grad[:2]
        grad_x_NC = torch.empty_like(x_NC) if needs_x else None
        grad_weight_C = torch.zeros_like(weight_C, dtype=rstd_N1.dtype)
        for rows in _chunks(x_NC):
            rstd_n1 = rstd_N1[rows]
            normed_nC = x_NC[rows].to(rstd_n1.dtype) * rstd_n1
            if needs_weight:
                grad_weight_C += (grad_NC[rows] * normed_nC).sum(0)
            if grad_x_NC is not None:
                grad_nC = (grad_NC[rows] * weight_C).to(rstd_n1.dtype)
                mean_n1 = (grad_nC * normed_nC).mean(-1, keepdim=True)
                grad_x_NC[rows] = grad_nC.sub_(normed_nC.mul_(mean_n1)).mul_(rstd_n1)
        grad_x = None if grad_x_NC is None else grad_x_NC.view(x.shape)
        return grad_x, grad_weight_C.to(weight_C.dtype) if needs_weight else None, None


def _chunks(x_NC: Tensor) -> list[slice]:
    step = max(1, CHUNK_ELEMENTS // x_NC.shape[1])
    return [slice(start, start + step) for start in range(0, x_NC.shape[0], step)]


class RMSNorm(nn.Module):
    """Scale each row to unit root mean square, then by a weight."""

    def __init__(
        self, size: int, eps: float, *, device: torch.device | str | None, dtype: torch.dtype | None
    ) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size, device=device, dtype=dtype))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        """Normalise the last dimension of x [..., C]."""
        apply: Any = _RMSNormFunction.apply
        return cast(Tensor, apply(x, self.weight, self.eps))
