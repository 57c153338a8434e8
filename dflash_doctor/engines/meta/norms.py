"""A stand-in for CUDA's fused RMSNorm; on meta tensors the op is taken apart before a mode sees it.

Source: aten/src/ATen/native/cuda/layer_norm_kernel.cu (`_fused_rms_norm_cuda` and its backward).
"""

from collections.abc import Sequence
from typing import Any

import torch


def fused_rms_norm(
    input: torch.Tensor, normalized_shape: Sequence[int], weight: torch.Tensor | None
) -> torch.Tensor:
    """Allocate what the fused kernel allocates: the output, and a float32 scale a row."""
    apply: Any = _FusedRMSNorm.apply
    out: torch.Tensor = apply(input, weight, len(normalized_shape))
    return out


class _FusedRMSNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, input: torch.Tensor, weight: torch.Tensor | None, dims: int) -> torch.Tensor:
        out = torch.empty_like(input, memory_format=torch.contiguous_format)
        scale = input.new_empty(input.shape[: input.dim() - dims], dtype=torch.float32)
        ctx.save_for_backward(input, weight, scale)
        return out

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        input, weight, _ = ctx.saved_tensors
        wants_input, wants_weight, _ = ctx.needs_input_grad
        grad_input = torch.empty_like(input) if wants_input else None
        grad_weight = torch.empty_like(weight) if wants_weight else None
        return grad_input, grad_weight, None
