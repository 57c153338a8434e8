"""Hold what a drafter borrows from its target: embedding, lm_head and final norm, all frozen.

Shape suffixes: V vocabulary, H hidden size, R rows.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F


@dataclass(frozen=True, slots=True, kw_only=True)
class FrozenTables:
    """Hold the target's tables; head_VH may be embedding_VH itself where they are tied."""

    embedding_VH: Tensor
    head_VH: Tensor
    final_norm: nn.Module | None = None
    """The norm before lm_head; needed for teacher logits only."""

    def embed(self, ids_R: Tensor) -> Tensor:
        """Look up rows of the embedding, [R, H], unscaled as in z-lab's package."""
        return F.embedding(ids_R, self.embedding_VH)

    def to(self, device: torch.device | str) -> FrozenTables:
        """Copy to a device; tied tables stay tied."""
        embedding_VH = self.embedding_VH.to(device)
        tied = self.head_VH is self.embedding_VH
        return FrozenTables(
            embedding_VH=embedding_VH,
            head_VH=embedding_VH if tied else self.head_VH.to(device),
            final_norm=None if self.final_norm is None else self.final_norm.to(device),
        )


def tables_from_causal_lm(model: Any, final_norm: nn.Module | None = None) -> FrozenTables:
    """Take the tables of a causal LM without copying them; its lm_head must have no bias (ValueError)."""
    embedding, head = model.get_input_embeddings(), model.get_output_embeddings()
    if getattr(head, "bias", None) is not None:
        raise ValueError("an lm_head with a bias is not supported")
    embedding_VH = embedding.weight.detach()
    tied = head.weight is embedding.weight
    if final_norm is not None:
        final_norm.requires_grad_(False)
    return FrozenTables(
        embedding_VH=embedding_VH,
        head_VH=embedding_VH if tied else head.weight.detach(),
        final_norm=final_norm,
    )


def random_tables(
    vocab_size: int,
    hidden_size: int,
    *,
    dtype: torch.dtype,
    device: torch.device | str,
    tied: bool = False,
    final_norm: nn.Module | None = None,
) -> FrozenTables:
    """Make tables with random values, std 0.02; instant on the meta device."""
    embedding_VH = torch.empty((vocab_size, hidden_size), dtype=dtype, device=device).normal_(0.0, 0.02)
    head_VH = embedding_VH if tied else torch.empty_like(embedding_VH).normal_(0.0, 0.02)
    return FrozenTables(embedding_VH=embedding_VH, head_VH=head_VH, final_norm=final_norm)
