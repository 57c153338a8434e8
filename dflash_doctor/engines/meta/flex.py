"""A stand-in for compiled flex attention: the outputs and scratch of its Triton kernels, no arithmetic.

Source: torch/_inductor/kernel/flex/flex_attention.py (`flex_attention`, `flex_attention_backward`).

Shape suffixes: B batch, G query heads, K key heads, Q queries, S keys, D head width.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import torch


@contextmanager
def flex_stand_in() -> Iterator[None]:
    """Swap flex attention for its stand-in, and leave out compilation, while the context lasts."""
    with (
        patch("torch.nn.attention.flex_attention.flex_attention", flex_attention),
        patch("torch.compile", _not_compiled),
    ):
        yield


def _not_compiled(function: Callable[..., Any] | None = None, **options: Any) -> Any:
    return function if function is not None else lambda later: later


def flex_attention(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, *args: Any, return_lse: bool = False,
    **kwargs: Any,
) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:  # fmt: skip
    """Allocate what flex attention's kernels allocate; query [B, G, Q, D], key and value [B, K, S, D]."""
    apply: Any = _Flex.apply
    out, lse = apply(query, key, value)
    return (out, lse) if return_lse else out


class _Flex(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        lse = query.new_empty(query.shape[:-1], dtype=torch.float32)
        largest = torch.empty_like(lse)
        out = torch.empty_like(query)
        del largest
        ctx.save_for_backward(query, key, value, out, lse)
        ctx.mark_non_differentiable(lse)
        ctx.set_materialize_grads(False)
        return out, lse

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor, _: None) -> tuple[torch.Tensor, ...]:
        query, key, value, _, lse = ctx.saved_tensors
        delta = torch.empty_like(lse)
        grads = torch.empty_like(query), torch.empty_like(key), torch.empty_like(value)
        del delta
        return grads
