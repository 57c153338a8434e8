"""A naive DFlash drafter: verifier logits over the whole packed sequence, rolled, then indexed."""

import torch
import torch.nn.functional as F
from torch import nn
from transformers.models.qwen3.modeling_qwen3 import Qwen3Config, Qwen3MLP, Qwen3RMSNorm


def anchored_indices(anchors, block_size):
    return (anchors[:, None] + torch.arange(block_size, device=anchors.device)).reshape(-1)


class DraftLayer(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.h, self.kv, self.d = c.num_attention_heads, c.num_key_value_heads, c.head_dim
        self.q = nn.Linear(c.hidden_size, self.h * self.d, bias=False)
        self.k = nn.Linear(c.hidden_size, self.kv * self.d, bias=False)
        self.v = nn.Linear(c.hidden_size, self.kv * self.d, bias=False)
        self.o = nn.Linear(self.h * self.d, c.hidden_size, bias=False)
        self.mlp = Qwen3MLP(c)
        self.n1, self.n2 = Qwen3RMSNorm(c.hidden_size), Qwen3RMSNorm(c.hidden_size)

    def forward(self, x, ctx):
        y = self.n1(x)
        kv = torch.cat([ctx, y], 1)
        q = self.q(y).view(1, y.shape[1], self.h, self.d).transpose(1, 2)
        k = self.k(kv).view(1, kv.shape[1], self.kv, self.d).transpose(1, 2)
        v = self.v(kv).view(1, kv.shape[1], self.kv, self.d).transpose(1, 2)
        a = F.scaled_dot_product_attention(q, k, v, enable_gqa=True)
        x = x + self.o(a.transpose(1, 2).reshape(1, y.shape[1], -1))
        return x + self.mlp(self.n2(x))


class Drafter(nn.Module):
    def __init__(self, c: Qwen3Config, num_features: int, block_size: int):
        super().__init__()
        self.block_size = block_size
        self.fc = nn.Linear(num_features * c.hidden_size, c.hidden_size, bias=False)
        self.hidden_norm = Qwen3RMSNorm(c.hidden_size)
        self.layers = nn.ModuleList(DraftLayer(c) for _ in range(c.num_hidden_layers))
        self.norm = Qwen3RMSNorm(c.hidden_size)
        self.embed = nn.Embedding(c.vocab_size, c.hidden_size)
        self.lm_head = nn.Linear(c.hidden_size, c.vocab_size, bias=False)
        self.verifier_norm = Qwen3RMSNorm(c.hidden_size)
        self.verifier_lm_head = nn.Linear(c.hidden_size, c.vocab_size, bias=False)
        for m in (self.embed, self.lm_head, self.verifier_norm, self.verifier_lm_head):
            m.requires_grad_(False)

    def forward(self, input_ids, features, verifier_last_hidden, anchors, mask_id):
        idx = anchored_indices(anchors, self.block_size)
        verifier_logits = self.verifier_lm_head(self.verifier_norm(verifier_last_hidden))
        verifier_logits = torch.roll(verifier_logits, 1, dims=1)
        targets = verifier_logits[:, idx]
        ctx = self.hidden_norm(self.fc(features))
        noise = torch.full((1, idx.numel()), mask_id, device=idx.device)
        noise[:, :: self.block_size] = input_ids[:, anchors]
        x = self.embed(noise)
        for layer in self.layers:
            x = layer(x, ctx)
        logits = self.lm_head(self.norm(x))
        return F.kl_div(
            F.log_softmax(logits.float(), -1),
            F.log_softmax(targets.float(), -1),
            log_target=True,
            reduction="batchmean",
        )
