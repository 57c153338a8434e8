"""A stand-in for flash-linear-attention's fused Gated DeltaNet: its real intermediates, no arithmetic.

Source: fla/ops/gated_delta_rule/chunk.py (`chunk_gated_delta_rule_fwd` and `_bwd`) and the kernels that
it calls, flash-linear-attention 0.6.0.

Shape suffixes: B batch, T tokens, G key heads, H value heads, K key width, V value width, N chunks.
"""

from typing import Any

import torch

CHUNK = 64
KEY_BLOCK = 64
"""Width of a block of keys in `chunk_bwd_dqkwg`; the decay gradient has one part a block."""


def fused_delta_rule(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, g: torch.Tensor, beta: torch.Tensor,
    *args: Any, output_final_state: bool = False, use_qk_l2norm_in_kernel: bool = False, **kwargs: Any,
) -> tuple[torch.Tensor, torch.Tensor | None]:  # fmt: skip
    """Allocate what the fused kernel allocates; query, key [B, T, G, K], value [B, T, H, V].

    Returns the output [B, T, H, V] and, where asked for, the final state [B, H, K, V] in float32.
    """
    query, key, value, g, beta = (t.contiguous() for t in (query, key, value, g, beta))
    apply: Any = _FusedDeltaRule.apply
    out: torch.Tensor = apply(query, key, value, g, beta, use_qk_l2norm_in_kernel)
    batch, _, heads, width = value.shape
    state = None
    if output_final_state:
        state = value.new_empty(batch, heads, key.shape[-1], width, dtype=torch.float32)
    return out, state


class _FusedDeltaRule(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, g: torch.Tensor,
        beta: torch.Tensor, normalise: bool,
    ) -> torch.Tensor:  # fmt: skip
        q_scale = k_scale = None
        if normalise:
            query, q_scale = _normalised(query)
            key, k_scale = _normalised(key)
        decay = torch.empty_like(g, dtype=torch.float32)
        inner, w, u, h, v_new = _states(key, value)
        out = torch.empty_like(value)
        del w, u, h, v_new
        ctx.save_for_backward(query, q_scale, key, k_scale, value, decay, beta, inner)
        return out

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        query, q_scale, key, _, value, decay, beta, _ = ctx.saved_tensors
        w, u, h, v_new = _recomputed(key, value)
        dv = torch.empty_like(value)
        dh, dv2 = torch.empty_like(h), torch.empty_like(dv)
        del dv
        dq, dk, dg, dw = _query_key_grads(key, value, decay)
        dk_w, dv_w, dg_w, db = _wy_grads(key, value, decay, beta)
        del dw
        dg = torch.empty_like(dg)
        del w, u, h, v_new, dh, dv2, dk_w, dg_w
        if q_scale is not None:
            dq, dk = torch.empty_like(query), torch.empty_like(key)
        return dq, dk, dv_w, dg, db, None


def _normalised(source: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.empty_like(source), source.new_empty(source.shape[:-1], dtype=torch.float32)


def _states(key: torch.Tensor, value: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Allocate the inner system [B, T, H, 64] and what the recurrence makes of it."""
    batch, tokens, heads, _ = value.shape
    inner = key.new_empty(batch, tokens, heads, CHUNK)
    return (inner, *_recomputed(key, value))


def _recomputed(key: torch.Tensor, value: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Allocate w [B, T, H, K], u [B, T, H, V], states [B, N, H, K, V] and new values [B, T, H, V]."""
    batch, tokens, heads, width = value.shape
    w = key.new_empty(batch, tokens, heads, key.shape[-1])
    u = torch.empty_like(value)
    h = key.new_empty(batch, -(-tokens // CHUNK), heads, key.shape[-1], width)
    return w, u, h, torch.empty_like(u)


def _query_key_grads(key: torch.Tensor, value: torch.Tensor, decay: torch.Tensor) -> tuple[torch.Tensor, ...]:
    batch, tokens, heads, _ = value.shape
    key_heads, width = key.shape[2:]
    dq = key.new_empty(batch, tokens, heads, width)
    dk = torch.empty_like(dq)
    dg = decay.new_empty(-(-width // KEY_BLOCK), *decay.shape)
    dw = torch.empty_like(dq)
    if heads != key_heads:
        dq = dq.view(batch, tokens, key_heads, -1, width).sum(3)
        dk = dk.view(batch, tokens, key_heads, -1, width).sum(3)
    return dq, dk, dg.sum(0), dw


def _wy_grads(
    key: torch.Tensor, value: torch.Tensor, decay: torch.Tensor, beta: torch.Tensor
) -> tuple[torch.Tensor, ...]:
    batch, tokens, heads, _ = value.shape
    key_heads, width = key.shape[2:]
    dk = key.new_empty(batch, tokens, heads, width)
    dv, dg, db = torch.empty_like(value), torch.empty_like(decay), torch.empty_like(beta)
    if heads != key_heads:
        dk = dk.view(batch, tokens, key_heads, -1, width).sum(3)
    return dk, dv, dg, db
