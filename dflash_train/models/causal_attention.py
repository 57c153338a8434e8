"""Give transformers' decoders causal attention that needs no mask tensor.

A row of one document, or documents of one length as a batch, needs no mask but causality. transformers' own
"sdpa" reads position ids back to the host to find packed rows, and makes an [L, L] mask for a sliding window.
Registered without a mask function, this implementation gets no mask and does both by itself.

Shape suffixes: N batch, G query heads, K key heads, L tokens, D head dimension, W window, C query chunk.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import AttentionInterface

CAUSAL_ATTENTION = "causal_sdpa"

KNOWN_LAYER_TYPES = ("full_attention", "sliding_attention", "linear_attention")


def check_layer_types(config: Any) -> None:
    """Refuse decoders whose attention is neither causal nor causal within a window: ValueError."""
    unknown = sorted(set(getattr(config, "layer_types", None) or ()) - set(KNOWN_LAYER_TYPES))
    if unknown:
        raise ValueError(f"layers of type {unknown[0]!r} need one of transformers' own attentions ('eager')")


def causal_attention(
    module: nn.Module,
    query_NGLD: Tensor,
    key_NKLD: Tensor,
    value_NKLD: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    dropout: float = 0.0,
    sliding_window: int | None = None,
    is_causal: bool | None = None,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """Attend causally, within the sliding window if there is one; return [N, L, G, D].

    Raises ValueError for what it does not compute: masks, sinks, soft caps, biases, bidirectional layers.
    """
    if is_causal is None:
        is_causal = getattr(module, "is_causal", True)
    foreign = [name for name in ("softcap", "s_aux", "position_bias") if kwargs.get(name) is not None]
    if attention_mask is not None or foreign or not is_causal:
        what = foreign[0] if foreign else "a mask" if attention_mask is not None else "no causality"
        raise ValueError(f"{type(module).__name__} has {what}: use one of transformers' own attentions")
    if query_NGLD.shape[1] != key_NKLD.shape[1] and query_NGLD.shape[-1] > 256:
        # No fused kernel takes grouped heads of this size; without one the scores would be materialised.
        groups = query_NGLD.shape[1] // key_NKLD.shape[1]
        key_NKLD = key_NKLD.repeat_interleave(groups, dim=1)
        value_NKLD = value_NKLD.repeat_interleave(groups, dim=1)
    gqa = query_NGLD.shape[1] != key_NKLD.shape[1]
    options: dict[str, Any] = {"scale": scaling, "enable_gqa": gqa}
    if sliding_window is None or query_NGLD.shape[2] <= sliding_window:
        out_NGLD = F.scaled_dot_product_attention(query_NGLD, key_NKLD, value_NKLD, is_causal=True, **options)
    else:
        out_NGLD = _sliding_attention(query_NGLD, key_NKLD, value_NKLD, sliding_window, options)
    return out_NGLD.transpose(1, 2).contiguous(), None


def _sliding_attention(
    query_NGLD: Tensor, key_NKLD: Tensor, value_NKLD: Tensor, window: int, options: dict[str, Any]
) -> Tensor:
    """Attend chunk by chunk: a chunk of W queries sees at most 2 W - 1 keys, so no mask exceeds [W, 2 W]."""
    length, device = query_NGLD.shape[2], query_NGLD.device
    if options["enable_gqa"]:
        groups = query_NGLD.shape[1] // key_NKLD.shape[1]
        key_NKLD = key_NKLD.repeat_interleave(groups, dim=1)
        value_NKLD = value_NKLD.repeat_interleave(groups, dim=1)
    out_NGLD = query_NGLD.new_empty((*query_NGLD.shape[:3], value_NKLD.shape[-1]))
    for start in range(0, length, window):
        stop, first = min(start + window, length), max(0, start - window + 1)
        back_CW = (
            torch.arange(start, stop, device=device)[:, None]
            - torch.arange(first, stop, device=device)[None, :]
        )
        out_NGLD[:, :, start:stop] = F.scaled_dot_product_attention(
            query_NGLD[:, :, start:stop],
            key_NKLD[:, :, first:stop],
            value_NKLD[:, :, first:stop],
            attn_mask=(back_CW >= 0) & (back_CW < window),
            scale=options["scale"],
        )
    return out_NGLD


AttentionInterface.register(CAUSAL_ATTENTION, causal_attention)
