"""Build tiny models and count live bytes, for the trainer's tests."""

from __future__ import annotations

import weakref
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import Gemma3TextConfig, GPT2Config, LlamaConfig, PretrainedConfig, Qwen3Config
from transformers.models.qwen3_5.configuration_qwen3_5 import Qwen3_5TextConfig

from dflash_train.models.draft_config import draft_config

VOCAB = 97
HIDDEN = 32


def qwen3(num_layers: int = 8) -> Qwen3Config:
    return Qwen3Config(
        vocab_size=VOCAB,
        hidden_size=HIDDEN,
        intermediate_size=48,
        num_hidden_layers=num_layers,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=8,
        tie_word_embeddings=False,
    )


def qwen3_5(num_layers: int = 8) -> Qwen3_5TextConfig:
    return Qwen3_5TextConfig(
        vocab_size=VOCAB,
        hidden_size=HIDDEN,
        intermediate_size=48,
        num_hidden_layers=num_layers,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=8,
        linear_num_value_heads=4,
        linear_num_key_heads=2,
        linear_key_head_dim=8,
        linear_value_head_dim=8,
        tie_word_embeddings=False,
    )


def target_configs() -> dict[str, PretrainedConfig]:
    shared: dict[str, Any] = {
        "vocab_size": VOCAB,
        "hidden_size": HIDDEN,
        "intermediate_size": 48,
        "num_hidden_layers": 8,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
    }
    tokens = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
    return {
        "qwen3": qwen3(),
        "llama": LlamaConfig(**shared),
        "gemma3": Gemma3TextConfig(**shared, **tokens, head_dim=8, sliding_window=6),
        "qwen3_5": qwen3_5(),
        "gpt2": GPT2Config(vocab_size=VOCAB, n_embd=HIDDEN, n_layer=8, n_head=4, n_positions=64, **tokens),
    }


def drafter(
    layer_types: list[str] | None = None, *, block_size: int = 4, window: int = 5, num_layers: int = 3
) -> Qwen3Config:
    """Describe a drafter for the tiny target, with features of three layers."""
    return draft_config(
        qwen3(),
        target_layer_ids=(1, 3, 5),
        mask_token_id=VOCAB - 1,
        num_layers=num_layers,
        block_size=block_size,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=8,
        layer_types=layer_types,
        sliding_window=window if layer_types and "sliding_attention" in layer_types else None,
    )


class LivePeak(TorchDispatchMode):
    """Count the bytes of storages that are born under the mode, and their peak."""

    def __init__(self, *known: Tensor) -> None:
        super().__init__()
        self.live = 0
        self.peak = 0
        self._seen: dict[int, Any] = {t.untyped_storage()._cdata: None for t in known}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        for tensor in torch.utils._pytree.tree_leaves(out):
            if isinstance(tensor, Tensor):
                self._track(tensor)
        return out

    def _track(self, tensor: Tensor) -> None:
        storage = tensor.untyped_storage()
        key, size = storage._cdata, storage.nbytes()
        if key in self._seen:
            return
        self.live += size
        self.peak = max(self.peak, self.live)
        self._seen[key] = weakref.finalize(storage, self._free, key, size)

    def _free(self, key: int, size: int) -> None:
        self.live -= size
        self._seen.pop(key, None)
