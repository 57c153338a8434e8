"""Draft a block of tokens from the target's features.

    features [1, T, F] --fc, hidden_norm--> context [1, T, H] --+--> keys and values of every layer
    block embeddings [1, R, H] --layer--> ... --layer--> norm --+--> hidden states [1, R, H]

Parameter names, shapes and numerics are those of z-lab's DFlash v1 drafter: 11 tensors a layer, and `fc`,
`hidden_norm` and `norm`; neither an embedding nor an lm_head.

Shape suffixes: N batch, T context tokens, R block rows, F = K * H features of a token, H hidden size,
I intermediate size, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint
from transformers import Qwen3Config

from dflash_train.models.anchors import place_blocks
from dflash_train.models.attention import ContextCache, DraftAttention, FlexKernel
from dflash_train.models.masks import AttentionMask, LayerPattern, dense_mask, visible_ranges
from dflash_train.models.norm import RMSNorm
from dflash_train.models.rope import check_rope, rotary_tables


class DraftMLP(nn.Module):
    """Apply the gated feed-forward network."""

    def __init__(
        self, config: Qwen3Config, *, device: torch.device | str | None, dtype: torch.dtype | None
    ) -> None:
        super().__init__()
        factory: dict[str, Any] = {"bias": False, "device": device, "dtype": dtype}
        self.gate_proj = nn.Linear(config.hidden_size, config.intermediate_size, **factory)
        self.up_proj = nn.Linear(config.hidden_size, config.intermediate_size, **factory)
        self.down_proj = nn.Linear(config.intermediate_size, config.hidden_size, **factory)

    def forward(self, x_NRH: Tensor) -> Tensor:
        """Map [N, R, H] to [N, R, H]."""
        out: Tensor = self.down_proj(F.silu(self.gate_proj(x_NRH)) * self.up_proj(x_NRH))
        return out


class DraftLayer(nn.Module):
    """Attend to context and block, then apply the feed-forward network, each with a residual."""

    def __init__(
        self,
        config: Qwen3Config,
        layer: int,
        *,
        device: torch.device | str | None,
        dtype: torch.dtype | None,
    ) -> None:
        super().__init__()
        factory: dict[str, Any] = {"device": device, "dtype": dtype}
        self.self_attn = DraftAttention(config, layer, **factory)
        self.mlp = DraftMLP(config, **factory)
        self.input_layernorm = RMSNorm(config.hidden_size, config.rms_norm_eps, **factory)
        self.post_attention_layernorm = RMSNorm(config.hidden_size, config.rms_norm_eps, **factory)

    def forward(
        self,
        x_NRH: Tensor,
        context_NTH: Tensor,
        rotary: tuple[Tensor, Tensor],
        mask: AttentionMask | None,
        flex: FlexKernel,
        cache: ContextCache | None = None,
    ) -> Tensor:
        """Map block rows [N, R, H] to [N, R, H]; the context is read, not changed."""
        normed = self.input_layernorm(x_NRH)
        x_NRH = x_NRH + self.self_attn(normed, context_NTH, rotary, mask, flex, cache)
        out: Tensor = x_NRH + self.mlp(self.post_attention_layernorm(x_NRH))
        return out


class Drafter(nn.Module):
    """Hold a DFlash v1 drafter.

    config is a `Qwen3Config` as `draft_config` makes it or as released drafters carry it. With recompute, a
    layer keeps nothing but its input between forward and backward.
    """

    def __init__(
        self,
        config: Qwen3Config,
        *,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        recompute: bool = False,
    ) -> None:
        super().__init__()
        check_drafter_config(config)
        self.config = config
        self.recompute = recompute
        self.block_size = block_size(config)
        self.target_layer_ids = tuple(config.dflash_config["target_layer_ids"])
        self.mask_token_id = int(config.dflash_config["mask_token_id"])
        self.patterns = layer_patterns(config)
        factory: dict[str, Any] = {"device": device, "dtype": dtype}
        num_features = len(self.target_layer_ids) * config.hidden_size
        self.fc = nn.Linear(num_features, config.hidden_size, bias=False, **factory)
        self.hidden_norm = RMSNorm(config.hidden_size, config.rms_norm_eps, **factory)
        self.layers = nn.ModuleList(
            DraftLayer(config, layer, **factory) for layer in range(config.num_hidden_layers)
        )
        self.norm = RMSNorm(config.hidden_size, config.rms_norm_eps, **factory)
        self._flex = FlexKernel()
        self.reset_parameters()

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Draw matrices from a normal distribution of `initializer_range`; set norms to one."""
        for parameter in self.parameters():
            if parameter.dim() > 1:
                parameter.normal_(0.0, self.config.initializer_range)
            else:
                parameter.fill_(1.0)

    def forward(
        self,
        block_embeddings_NRH: Tensor,
        features_NTF: Tensor,
        positions_NS: Tensor,
        masks: Mapping[LayerPattern, AttentionMask],
    ) -> Tensor:
        """Return the normalised hidden states of all block rows, [N, R, H].

        positions are those of `[context | block]`, [N, T + R]; masks holds one mask for each of `patterns`.
        """
        context_NTH = self.hidden_norm(self.fc(features_NTF))
        rotary = rotary_tables(self.config, positions_NS, block_embeddings_NRH.dtype)
        x_NRH = block_embeddings_NRH
        for layer, pattern in zip(self.layers, self.patterns, strict=True):
            arguments = (x_NRH, context_NTH, rotary, masks[pattern], self._flex)
            if self.recompute and torch.is_grad_enabled():
                x_NRH = cast(
                    Tensor, checkpoint(layer, *arguments, use_reentrant=False, preserve_rng_state=False)
                )
            else:
                x_NRH = layer(*arguments)
        out: Tensor = self.norm(x_NRH)
        return out

    @torch.no_grad()
    def draft(self, block_embeddings_NRH: Tensor, features_NtF: Tensor, cache: ContextCache) -> Tensor:
        """Return the hidden states of one block behind the cached context, [N, R, H].

        features are those of the t tokens verified since the last draft; their keys and values join the
        cache.
        """
        num_held, num_rows = cache.num_tokens, block_embeddings_NRH.shape[1]
        num_context = num_held + features_NtF.shape[1]
        device = block_embeddings_NRH.device
        positions_NS = torch.arange(num_held, num_context + num_rows, device=device)[None]
        rotary = rotary_tables(self.config, positions_NS, block_embeddings_NRH.dtype)
        context_NtH = self.hidden_norm(self.fc(features_NtF))
        x_NRH = block_embeddings_NRH
        for layer, pattern in zip(self.layers, self.patterns, strict=True):
            mask = _single_block_mask(pattern, num_context, num_rows)
            mask = None if mask is None else mask.to(device)
            x_NRH = layer(x_NRH, context_NtH, rotary, mask, self._flex, cache)
        out: Tensor = self.norm(x_NRH)
        return out


def layer_patterns(config: Qwen3Config) -> tuple[LayerPattern, ...]:
    """Return what each layer may see.

    Layers are causal within the block where `config.is_causal` or `dflash_config["causal"]` says so; without
    either, sliding layers are and full layers are not, as z-lab's package, vLLM and SGLang serve them.
    """
    stated = getattr(config, "is_causal", None)
    stated = config.dflash_config.get("causal") if stated is None else stated
    patterns = []
    for kind in config.layer_types or ():
        slides = kind == "sliding_attention"
        window = config.sliding_window if slides else None
        patterns.append(LayerPattern(window=window, causal=slides if stated is None else bool(stated)))
    return tuple(patterns)


def block_size(config: Qwen3Config) -> int:
    """Read the block size, anchor included, from `dflash_config` or the top level."""
    size = config.dflash_config.get("block_size", getattr(config, "block_size", None))
    if size is None:
        raise ValueError("the drafter's config has no block_size")
    return int(size)


def check_drafter_config(config: Qwen3Config) -> None:
    """Refuse a config that is not a DFlash v1 drafter's: ValueError."""
    dflash = dict(getattr(config, "dflash_config", None) or {})
    for key in ("target_layer_ids", "mask_token_id"):
        if dflash.get(key) is None:
            raise ValueError(f"the drafter's config lacks dflash_config.{key}")
    if any(key in dflash for key in ("conv_kernel_size", "selector_rank")):
        raise ValueError("this is a DFlash2 drafter; only DFlash v1 can be trained")
    if config.attention_bias or config.hidden_act != "silu":
        raise ValueError("a DFlash v1 drafter has no attention bias and silu as its activation")
    if config.attention_dropout:
        raise ValueError("attention_dropout is not supported: set it to 0")
    for kind in config.layer_types or ():
        if kind not in ("full_attention", "sliding_attention"):
            raise ValueError(f"unknown layer type {kind!r}")
        if kind == "sliding_attention" and not config.sliding_window:
            raise ValueError("a sliding layer needs sliding_window")
    check_rope(config)


def _single_block_mask(pattern: LayerPattern, num_context: int, num_rows: int) -> Tensor | None:
    """Return the mask of one block that starts behind num_context tokens; None sees everything."""
    if pattern == LayerPattern():
        return None
    blocks = place_blocks((num_context + 1,), torch.tensor([num_context]), num_rows)
    mask = dense_mask(visible_ranges(blocks, pattern))
    # The anchor's own context row does not exist here: its key is the block's first.
    keep = torch.arange(mask.shape[-1]) != num_context
    return mask[..., keep]
