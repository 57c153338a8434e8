"""Describe a DFlash drafter for a given target."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from transformers import Qwen3Config


def draft_config(
    target_config: Any,
    *,
    target_layer_ids: Sequence[int],
    mask_token_id: int,
    num_layers: int = 5,
    block_size: int = 16,
    intermediate_size: int | None = None,
    num_attention_heads: int = 32,
    num_key_value_heads: int = 8,
    head_dim: int = 128,
    layer_types: Sequence[str] | None = None,
    sliding_window: int | None = None,
    causal: bool | None = None,
) -> Qwen3Config:
    """Return a drafter's config: the target's hidden size, vocabulary and plain RoPE theta, its own heads.

    causal None leaves causality to the layer types (sliding layers are causal within the block).
    """
    text = target_config.get_text_config()
    kinds = list(layer_types) if layer_types is not None else ["full_attention"] * num_layers
    if len(kinds) != num_layers:
        raise ValueError(f"{num_layers} draft layers but {len(kinds)} layer types")
    if not 0 <= mask_token_id < text.vocab_size:
        raise ValueError(f"mask token {mask_token_id} lies outside the vocabulary of {text.vocab_size}")
    dflash: dict[str, Any] = {
        "target_layer_ids": list(target_layer_ids),
        "mask_token_id": mask_token_id,
        "block_size": block_size,
    }
    if causal is not None:
        dflash["causal"] = causal
    extra: dict[str, Any] = {
        "block_size": block_size,
        "dflash_config": dflash,
        "num_target_layers": text.num_hidden_layers,
    }
    return Qwen3Config(
        architectures=["DFlashDraftModel"],
        hidden_size=text.hidden_size,
        intermediate_size=intermediate_size or text.intermediate_size,
        vocab_size=text.vocab_size,
        num_hidden_layers=num_layers,
        num_attention_heads=num_attention_heads,
        num_key_value_heads=num_key_value_heads,
        head_dim=head_dim,
        layer_types=kinds,
        use_sliding_window="sliding_attention" in kinds,
        sliding_window=sliding_window,
        max_window_layers=num_layers,
        max_position_embeddings=text.max_position_embeddings,
        rms_norm_eps=getattr(text, "rms_norm_eps", 1e-6),
        rope_parameters={"rope_type": "default", "rope_theta": _rope_theta(text)},
        tie_word_embeddings=False,
        attention_bias=False,
        attention_dropout=0.0,
        **extra,
    )


def _rope_theta(config: Any) -> float:
    """Read the plain theta; where layer types have their own (Gemma 3), that of full attention."""
    parameters = getattr(config, "rope_parameters", None) or {}
    parameters = parameters.get("full_attention", parameters)
    return float(parameters.get("rope_theta", getattr(config, "rope_theta", 10_000.0)))
