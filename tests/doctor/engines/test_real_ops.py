"""The ops that a real model runs on the CPU are those that the engine traces, attention aside."""

from typing import Any

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import AutoConfig, AutoModelForCausalLM

from dflash_doctor.engines.meta.ops import tensors_in
from dflash_doctor.engines.profile import trace_profile
from dflash_doctor.records.plan import ModelSpec, ProfileRequest

BATCH, SEQ, STEPS = 2, 24, 3
SIZES: dict[str, Any] = {"vocab_size": 131, "bos_token_id": 0, "eos_token_id": 0, "pad_token_id": 0}
LLAMA_LIKE = {
    **SIZES, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 1, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 8,
}  # fmt: skip
NO_DROPOUT = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
CONFIGS: dict[str, dict[str, Any]] = {
    "qwen3": {"model_type": "qwen3", **LLAMA_LIKE},
    "llama": {"model_type": "llama", **LLAMA_LIKE, "tie_word_embeddings": True},
    "gemma3": {"model_type": "gemma3_text", **LLAMA_LIKE},
    "gpt2": {
        "model_type": "gpt2",
        **SIZES,
        "n_embd": 32,
        "n_layer": 1,
        "n_head": 4,
        "n_positions": 64,
        **NO_DROPOUT,
    },
}
SAME_EVERYWHERE = frozenset(
    {
        "mm", "addmm", "embedding", "embedding_dense_backward", "pow", "mean", "rsqrt", "native_layer_norm",
        "native_layer_norm_backward", "silu", "silu_backward", "gelu", "gelu_backward", "tanh",
        "tanh_backward", "_log_softmax", "_log_softmax_backward_data", "nll_loss_forward",
        "nll_loss_backward",
    }
)  # fmt: skip
"""Embedding, linear layers, norms, activations and loss; attention and sums of gradients differ."""

Ran = tuple[str, tuple[tuple[int, ...], ...]]
"""An op's bare name and the shapes that it reads."""


class Listing(TorchDispatchMode):
    """Run every op as it is, and list it."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.ran: list[Ran] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = str(func).split(".")[1]
        if name in SAME_EVERYWHERE:
            self.ran.append((name, tuple(tuple(tensor.shape) for tensor in tensors_in(args, []))))
        return func(*args, **(kwargs or {}))


def ran_on_the_cpu(config: dict[str, Any]) -> list[Ran]:
    fields = {name: value for name, value in config.items() if name != "model_type"}
    model: Any = AutoModelForCausalLM.from_config(
        AutoConfig.for_model(config["model_type"], **fields), attn_implementation="sdpa"
    )
    assert isinstance(model, nn.Module)
    ids = torch.randint(0, 131, (BATCH, SEQ))
    with Listing() as listing:
        for _ in range(STEPS):
            loss = model.train()(input_ids=ids, labels=ids, use_cache=False).loss
            assert torch.isfinite(loss)
            loss.backward()
            model.zero_grad()
    ran: list[Ran] = listing.ran
    return ran


def ran_in_the_trace(config: dict[str, Any]) -> list[Ran]:
    request = ProfileRequest(
        model=ModelSpec(name="tiny", config=config, origin="test"),
        mode="train", batch=BATCH, seq=SEQ, dtype="float32", optimizer="sgd",
    )  # fmt: skip
    ran: list[Ran] = []
    for op in trace_profile(request).ops:
        name = op.site.op.split(".")[1]
        if name in SAME_EVERYWHERE:
            ran.append((name, tuple(read.shape for read in op.reads)))
    return ran


@pytest.mark.parametrize("name", CONFIGS)
def test_the_trace_has_the_ops_and_shapes_of_a_real_step(name: str) -> None:
    real, traced = ran_on_the_cpu(CONFIGS[name]), ran_in_the_trace(CONFIGS[name])
    assert {op for op, _ in real} >= {"embedding", "embedding_dense_backward", "mm", "_log_softmax"}
    assert traced == real
