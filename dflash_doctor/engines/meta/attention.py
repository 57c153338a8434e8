"""Attention as CUDA would run it: the backend chosen by shape and device, its outputs and scratch.

The choice never looks at a tensor's device. Sources: aten/src/ATen/native/transformers/cuda/
(sdp_utils.cpp, attention.cu, attention_backward.cu, flash_attn/flash_api.cpp).
"""

from typing import Any

import torch

from dflash_doctor.engines.meta.device import Device

aten = torch.ops.aten
_plain = torch.nn.functional.scaled_dot_product_attention


def scaled_dot_product_attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attn_mask: torch.Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
    *,
    device: Device,
) -> Any:
    """Run attention by the op that CUDA would choose: flash, memory-efficient or math.

    Shapes: query [B, H, Q, D], key and value [B, H_kv, K, D]; the mask broadcasts to [B, H, Q, K].
    """
    if not query.is_meta:
        return _plain(query, key, value, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa)
    needs_grad = torch.is_grad_enabled() and any(t.requires_grad for t in (query, key, value))
    is_efficient = _fits_efficient(query, value)
    if attn_mask is not None and is_efficient:
        attn_mask = _prepared(attn_mask, query.dtype)
    if _fits_flash(query, key, value, attn_mask, needs_grad, dropout_p, device):
        return _flash(query, key, value, dropout_p, is_causal, scale)
    if is_efficient:
        return _efficient(query, key, value, attn_mask, dropout_p, is_causal, scale, needs_grad)
    return aten._scaled_dot_product_attention_math(
        query, key, value, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa
    )[0]


def _prepared(mask: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Turn a boolean mask into one that is added, and pad its rows (attention.cpp).

    The last dimension becomes a multiple of 16 elements (`convert_boolean_attn_mask`, `pad_bias`).
    """
    if mask.dtype == torch.bool:
        kept, hidden = (mask.new_full((), value, dtype=dtype) for value in (0.0, float("-inf")))
        mask = torch.where(mask, kept, hidden)
    length = mask.shape[-1]
    missing = -length % 16
    return torch.nn.functional.pad(mask, (0, missing))[..., :length] if missing else mask


def _fits_flash(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, mask: torch.Tensor | None,
    needs_grad: bool, dropout_p: float, device: Device,
) -> bool:  # fmt: skip
    width = query.shape[-1]
    if mask is not None or query.dtype not in (torch.float16, torch.bfloat16) or query.dim() != 4:
        return False
    if device.compute_capability < (8, 0) or width > 256 or {key.shape[-1], value.shape[-1]} != {width}:
        return False
    small = device.compute_capability in ((8, 6), (8, 9), (12, 0), (12, 1))
    return not (needs_grad and small and width > 192 and (width <= 224 or dropout_p > 0))


def _fits_efficient(query: torch.Tensor, value: torch.Tensor) -> bool:
    """Say whether the dtype is known and both widths are whole vectors of 16 bytes (sdp_utils.cpp)."""
    if query.dtype not in (torch.float16, torch.bfloat16, torch.float32) or query.dim() != 4:
        return False
    vector = 16 // query.element_size()
    return query.shape[-1] % vector == 0 and value.shape[-1] % vector == 0


def _flash(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, dropout_p: float, is_causal: bool,
    scale: float | None,
) -> torch.Tensor:  # fmt: skip
    width = query.shape[-1]
    missing = -width % 8
    if missing:
        scale = scale if scale is not None else width**-0.5
        query, key, value = (torch.nn.functional.pad(t, (0, missing)) for t in (query, key, value))
    out = aten._scaled_dot_product_flash_attention(
        query, key, value, dropout_p, is_causal, False, scale=scale
    )[0]
    return out[..., :width] if missing else out  # type: ignore[no-any-return]


def _efficient(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, mask: torch.Tensor | None,
    dropout_p: float, is_causal: bool, scale: float | None, needs_grad: bool,
) -> torch.Tensor:  # fmt: skip
    if mask is not None:
        mask = mask.expand(*query.shape[:-1], key.shape[-2])
    return aten._scaled_dot_product_efficient_attention(  # type: ignore[no-any-return]
        query, key, value, mask, needs_grad, dropout_p, is_causal, scale=scale
    )[0]


def efficient_forward(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, bias: torch.Tensor | None,
    compute_logsumexp: bool, dropout_p: float = 0.0, *rest: Any, **kwargs: Any,
) -> tuple[torch.Tensor, ...]:  # fmt: skip
    """Shape the outputs of memory-efficient attention; with dropout, seed and offset live on the CPU."""
    batch, heads, rows, _ = query.shape
    out = query.new_empty(batch, rows, heads, value.shape[-1]).transpose(1, 2)
    padded = -(-rows // 32) * 32 if compute_logsumexp else 0
    logsumexp = query.new_empty(batch, heads, padded, dtype=torch.float32)
    seed, offset = (
        torch.zeros((), dtype=torch.long, device="cpu" if dropout_p else "meta") for _ in range(2)
    )
    return out, logsumexp, seed, offset


def efficient_backward(
    grad: torch.Tensor, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor,
    bias: torch.Tensor | None, *rest: Any, **kwargs: Any,
) -> tuple[torch.Tensor | None, ...]:  # fmt: skip
    """Shape the gradients of memory-efficient attention; grouped heads get theirs summed."""
    wanted = next((a for a in rest if isinstance(a, (list, tuple))), [True, True, True, False])

    def like(tensor: torch.Tensor) -> torch.Tensor:
        batch, heads, rows, width = tensor.shape
        return tensor.new_empty(batch, rows, heads, width).transpose(1, 2)

    grads = [like(tensor) for tensor in (query, key, value)]
    return (*grads, torch.empty_like(bias) if wanted[3] and bias is not None else None)
