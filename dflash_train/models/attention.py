"""Attend from the rows of blocks to target features and to their own block.

Keys and values are `[context | block]`; queries are block rows only. The backend is named by the plan, never
guessed from a tensor's device.

Shape suffixes: N batch, T context tokens, R block rows, S keys, H hidden size, G query heads, K key heads,
D head dimension.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias, cast

import torch
import torch.nn.attention.flex_attention
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.attention.flex_attention import BlockMask

from dflash_train.models.masks import AttentionMask, FlexMask
from dflash_train.models.norm import RMSNorm
from dflash_train.models.rope import rotate

FlexCall: TypeAlias = Callable[[Tensor, Tensor, Tensor, BlockMask, float], Tensor]


class ContextCache:
    """Keep each layer's projected context between drafts; block keys and values are never kept."""

    def __init__(self) -> None:
        self._layers: dict[int, tuple[Tensor, Tensor]] = {}

    @property
    def num_tokens(self) -> int:
        """Count the context tokens held."""
        return self._layers[0][0].shape[2] if self._layers else 0

    def extend(
        self, layer: int, keys_NKSD: Tensor, values_NKSD: Tensor, num_new: int
    ) -> tuple[Tensor, Tensor]:
        """Put the held context before `[new context | block]`, and keep the first num_new of it."""
        if layer in self._layers:
            held_keys, held_values = self._layers[layer]
            keys_NKSD = torch.cat((held_keys, keys_NKSD), dim=2)
            values_NKSD = torch.cat((held_values, values_NKSD), dim=2)
            num_new += held_keys.shape[2]
        self._layers[layer] = (keys_NKSD[:, :, :num_new], values_NKSD[:, :, :num_new])
        return keys_NKSD, values_NKSD


class FlexKernel:
    """Compile flex attention for one drafter, on first use."""

    def __init__(self) -> None:
        self._compiled: FlexCall | None = None

    def __call__(
        self, q_NGRD: Tensor, k_NKSD: Tensor, v_NKSD: Tensor, mask: BlockMask, scale: float
    ) -> Tensor:
        """Return the attention output, [N, G, R, D]."""
        if self._compiled is None:
            self._compiled = cast(FlexCall, torch.compile(_flex_attention, dynamic=False))
        return self._compiled(q_NGRD, k_NKSD, v_NKSD, mask, scale)


def _flex_attention(q_NGRD: Tensor, k_NKSD: Tensor, v_NKSD: Tensor, mask: BlockMask, scale: float) -> Tensor:
    # The module attribute is looked up at every call: a memory tracer swaps it.
    attend = torch.nn.attention.flex_attention.flex_attention
    gqa = q_NGRD.shape[1] != k_NKSD.shape[1]
    return attend(q_NGRD, k_NKSD, v_NKSD, block_mask=mask, scale=scale, enable_gqa=gqa)


class DraftAttention(nn.Module):
    """Project block rows and features, and attend; parameter names are those of z-lab's DFlash."""

    def __init__(
        self,
        config: Any,
        layer: int,
        *,
        device: torch.device | str | None,
        dtype: torch.dtype | None,
    ) -> None:
        super().__init__()
        self.layer = layer
        self.head_dim = int(config.head_dim)
        query_size = config.num_attention_heads * self.head_dim
        key_size = config.num_key_value_heads * self.head_dim
        factory: dict[str, Any] = {"bias": False, "device": device, "dtype": dtype}
        self.q_proj = nn.Linear(config.hidden_size, query_size, **factory)
        self.k_proj = nn.Linear(config.hidden_size, key_size, **factory)
        self.v_proj = nn.Linear(config.hidden_size, key_size, **factory)
        self.o_proj = nn.Linear(query_size, config.hidden_size, **factory)
        self.q_norm = RMSNorm(self.head_dim, config.rms_norm_eps, device=device, dtype=dtype)
        self.k_norm = RMSNorm(self.head_dim, config.rms_norm_eps, device=device, dtype=dtype)

    def forward(
        self,
        x_NRH: Tensor,
        context_NTH: Tensor,
        rotary: tuple[Tensor, Tensor],
        mask: AttentionMask | None,
        flex: FlexKernel,
        cache: ContextCache | None = None,
    ) -> Tensor:
        """Return the attention output, [N, R, H].

        rotary holds cosines and sines of `[context | block]`, [N, T + R, D]; a mask of None sees everything.
        """
        num_context, num_rows = context_NTH.shape[1], x_NRH.shape[1]
        cos, sin = rotary
        q_NGRD = self.q_norm(self._heads(self.q_proj(x_NRH))).transpose(1, 2)
        q_NGRD = rotate(q_NGRD, cos[:, num_context:], sin[:, num_context:])
        k_NSC = torch.cat((self.k_proj(context_NTH), self.k_proj(x_NRH)), dim=1)
        k_NKSD = rotate(self.k_norm(self._heads(k_NSC)).transpose(1, 2), cos, sin)
        v_NSC = torch.cat((self.v_proj(context_NTH), self.v_proj(x_NRH)), dim=1)
        v_NKSD = self._heads(v_NSC).transpose(1, 2)
        if cache is not None:
            k_NKSD, v_NKSD = cache.extend(self.layer, k_NKSD, v_NKSD, num_context)
        out_NGRD = self._attend(q_NGRD, k_NKSD, v_NKSD, mask, flex)
        out: Tensor = self.o_proj(out_NGRD.transpose(1, 2).reshape(-1, num_rows, self.o_proj.in_features))
        return out

    def _attend(
        self, q_NGRD: Tensor, k_NKSD: Tensor, v_NKSD: Tensor, mask: AttentionMask | None, flex: FlexKernel
    ) -> Tensor:
        scale = self.head_dim**-0.5
        if isinstance(mask, FlexMask):
            return flex(q_NGRD, k_NKSD, v_NKSD, mask.block_mask, scale)
        gqa = q_NGRD.shape[1] != k_NKSD.shape[1]
        return F.scaled_dot_product_attention(
            q_NGRD, k_NKSD, v_NKSD, attn_mask=mask, scale=scale, enable_gqa=gqa
        )

    def _heads(self, x_NLC: Tensor) -> Tensor:
        return x_NLC.view(*x_NLC.shape[:-1], -1, self.head_dim)
