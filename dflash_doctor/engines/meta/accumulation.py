"""Gradient accumulation as autograd does it on CUDA: in place wherever a buffer has one owner.

The autograd engine adds a second gradient into the first one's memory unless a dispatch mode is on;
then it makes a third tensor (torch/csrc/autograd/input_buffer.cpp, `can_accumulate_inplace`). The
mode undoes that: an addition that the engine itself makes gives its first input back if solely owned.
So do the derivatives of indexing, which write into fresh zeros (torch/csrc/autograd/FunctionsManual.cpp,
`areAnyTensorSubclassLike`).
"""

import functools
import sys
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

_ENGINE_FRAME = "_engine_run_backward"
_WRITES_OF_DERIVATIVES = frozenset({"index_put", "index_add", "scatter", "scatter_add"})


def is_accumulation(base: str, args: tuple[Any, ...], frames_up: int) -> bool:
    """Say whether an op is the engine's own sum of two gradients."""
    if base != "add" or torch._C._current_graph_task_id() < 0 or len(args) != 2:
        return False
    first, second = args
    return (
        isinstance(second, torch.Tensor)
        and first.shape == second.shape
        and first.dtype == second.dtype
        and sys._getframe(frames_up + 1).f_code.co_name == _ENGINE_FRAME
    )


def is_write_into_zeros(base: str, frames_up: int) -> bool:
    """Say whether an op is a derivative's own write of gradients into zeros that it made for them."""
    return base in _WRITES_OF_DERIVATIVES and sys._getframe(frames_up + 1).f_code.co_name == _ENGINE_FRAME


def takes_in_place(gradient: torch.Tensor) -> bool:
    """Say whether the gradient that came first is solely owned, so that the second is added into it."""
    uses = torch._C._storage_Use_Count(gradient.untyped_storage()._cdata)
    return gradient._use_count() <= sole_use_count() and uses <= 2 and _is_dense(gradient)  # type: ignore[attr-defined]


def _is_dense(tensor: torch.Tensor) -> bool:
    return torch._prims_common.is_non_overlapping_and_dense_or_false(tensor)


@functools.cache
def sole_use_count() -> int:
    """Measure the use count of a sole-owned gradient as a dispatch mode sees it; it varies by version."""
    counts: list[int] = []

    class Watch(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            if torch._C._current_graph_task_id() >= 0 and "aten.add.Tensor" in str(func):
                counts.append(args[0]._use_count())
            return func(*args, **(kwargs or {}))

    leaf = torch.empty(2, device="meta", requires_grad=True)
    watch: Any = Watch
    with watch(), torch.enable_grad():
        doubled = leaf * 2
        (torch.relu(doubled) * torch.sigmoid(doubled)).sum().backward()
    return min(counts)
