"""The device whose choices are modelled, and the terms in which kernels' scratch is told."""

from dataclasses import dataclass
from typing import Any, Literal

import torch

MIB = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """The device whose choices are modelled; memory is no part of it."""

    compute_capability: tuple[int, int] = (12, 0)
    num_multiprocessors: int = 188

    @property
    def shared_kib(self) -> int:
        """Give the shared memory that one block may opt in to, in KiB (CUDA programming guide)."""
        if self.compute_capability in ((8, 0), (8, 7)):
            return 163
        if self.compute_capability[0] in (9, 10, 11):
            return 227
        return 99 if self.compute_capability >= (8, 6) else 64

    @property
    def cublas_workspace_bytes(self) -> int:
        """Give cuBLAS's workspace a thread: 32 MiB from Hopper on, 8.125 MiB before.

        Source: aten/src/ATen/cuda/CublasHandlePool.cpp, `parseChosenWorkspaceSize`.
        """
        return 32 * MIB if self.compute_capability >= (9, 0) else 4096 * 1024 * 2 + 16 * 1024 * 8


@dataclass(frozen=True, slots=True)
class Temporary:
    """Scratch of one kernel call, allocated before or after the op's outputs and freed at its end."""

    bytes: int
    dtype: str = "uint8"
    when: Literal["before", "after"] = "after"


@dataclass(frozen=True, slots=True)
class Call:
    """One op's arguments as a scratch model sees them."""

    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    inputs: list[torch.Tensor]
    outputs: list[torch.Tensor]
    device: Device


def num_bytes(tensor: torch.Tensor) -> int:
    """Give the bytes of a tensor's elements."""
    return tensor.numel() * tensor.element_size()
