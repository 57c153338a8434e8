"""Gated DeltaNet on meta: the fused kernels' stand-in, or the fallback's own loop, cut short."""

import sys
import types
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest.mock import patch

import torch

from dflash_doctor.engines.meta.delta_rule import fused_delta_rule
from dflash_doctor.records.plan import LinearAttention

LOOP_TURNS = 4
"""Turns of the chunk loop that are run without gradients: its memory repeats from the second on."""


@contextmanager
def linear_attention(kind: LinearAttention) -> Iterator[None]:
    """Have every loaded transformers model run its delta rule as the plan says."""
    with ExitStack() as stack:
        for module in list(sys.modules.values()):
            name = getattr(module, "__name__", "")
            if not name.startswith("transformers.models.") or "modeling" not in name:
                continue
            chunked = module.__dict__.get("torch_chunk_gated_delta_rule")
            if chunked is None:
                continue
            instead = fused_delta_rule if kind == "fused" else _cut_short(chunked)
            stack.enter_context(patch.object(module, "torch_chunk_gated_delta_rule", instead))
            for other in ("causal_conv1d_fn", "causal_conv1d_update"):
                if other in module.__dict__:
                    stack.enter_context(patch.object(module, other, _plain(module.__dict__[other])))
        yield


def _plain(wrapped: Callable[..., Any]) -> Callable[..., Any]:
    """Unwrap transformers' choice of a kernel: the PyTorch implementation, whatever is installed."""
    inner: Callable[..., Any] = getattr(wrapped, "__wrapped__", wrapped)
    return lambda *args, **kwargs: inner(*args, **kwargs)


def _cut_short(wrapped: Callable[..., Any]) -> Callable[..., Any]:
    """Run the fallback's own code, its loop over chunks cut to a few turns where nothing is saved."""
    inner: Any = getattr(wrapped, "__wrapped__", wrapped)

    def short_range(*bounds: int) -> range:
        whole = range(*bounds)
        return whole if torch.is_grad_enabled() else whole[:LOOP_TURNS]

    short = types.FunctionType(
        inner.__code__, {**inner.__globals__, "range": short_range}, inner.__name__, inner.__defaults__
    )
    short.__kwdefaults__ = inner.__kwdefaults__

    def run(*args: Any, **kwargs: Any) -> Any:
        if kwargs.get("cu_seqlens") is not None:
            raise ValueError("the PyTorch fallback of Gated DeltaNet cannot keep packed documents apart")
        return short(*args, **kwargs)

    return run
