"""A stand-in for CUDA's fused RMSNorm; on meta tensors the op is taken apart before a mode sees it.

Source: aten/src/ATen/native/cuda/layer_norm_kernel.cu (`_fused_rms_norm_cuda` and its backward,
`LaunchGammaBetaBackwardCUDAKernel`).
"""

from collections.abc import Sequence
from typing import Any

import torch

from dflash_doctor.engines.meta.device import Device

WARP = 32
MANY_ROWS = 64 * 1024
MOST_BLOCKS = 32 * 1024


def norm_parts(rows: int, width: int, device: Device) -> tuple[int, int] | None:
    """Shape the partial sums of a weight's gradient, [parts, width]; None where one pass is enough."""
    columns = -(-width // WARP)
    if rows <= MANY_ROWS or width // WARP >= device.num_multiprocessors // 2:
        return None
    return min(-(-rows // WARP), MOST_BLOCKS // columns), width


def fused_rms_norm(
    input: torch.Tensor, normalized_shape: Sequence[int], weight: torch.Tensor | None, device: Device
) -> torch.Tensor:
    """Allocate what the fused kernel allocates: the output, and a float32 scale a row."""
    apply: Any = _FusedRMSNorm.apply
    out: torch.Tensor = apply(input, weight, len(normalized_shape), device)
    return out


class _FusedRMSNorm(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, input: torch.Tensor, weight: torch.Tensor | None, dims: int, device: Device
    ) -> torch.Tensor:
        out = torch.empty_like(input, memory_format=torch.contiguous_format)
        scale = input.new_empty(input.shape[: input.dim() - dims], dtype=torch.float32)
        ctx.device = device
        ctx.save_for_backward(input, weight, scale)
        return out

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        input, weight, scale = ctx.saved_tensors
        wants_input, wants_weight = ctx.needs_input_grad[:2]
        grad_input = torch.empty_like(input) if wants_input else None
        grad_weight = torch.empty_like(weight) if wants_weight else None
        parts = norm_parts(scale.numel(), input.numel() // max(1, scale.numel()), ctx.device)
        if grad_weight is not None and parts is not None:
            grad_weight = weight.new_empty(parts).sum(0).view(weight.shape)
        return grad_input, grad_weight, None, None
