"""Small steps that run alike on every device, so that their peaks can be measured and forecast.

Run as a program on a CUDA device, this prints the peaks of each case in a process of its own:
`python -m tests.doctor.engines.meta.cases > peaks.json`.
"""

import json
import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

BF16, FP16, FP32, INT64, BOOL = torch.bfloat16, torch.float16, torch.float32, torch.int64, torch.bool


@dataclass(frozen=True, slots=True)
class Made:
    """A tensor that a case begins with."""

    shape: tuple[int, ...]
    dtype: torch.dtype
    requires_grad: bool

    def on(self, device: str) -> Tensor:
        if self.dtype in (INT64, BOOL):
            return torch.zeros(self.shape, dtype=self.dtype, device=device)
        return torch.empty(self.shape, dtype=self.dtype, device=device, requires_grad=self.requires_grad)


@dataclass(frozen=True, slots=True)
class Case:
    """A forward pass; where its output has a gradient, a backward pass follows with a dense one."""

    forward: Callable[..., Any]
    begins_with: tuple[Made, ...]

    def make(self, device: str) -> list[Tensor]:
        return [made.on(device) for made in self.begins_with]

    def run(self, tensors: list[Tensor]) -> Any:
        out = self.forward(*tensors)
        if isinstance(out, Tensor) and out.requires_grad:
            out.backward(torch.empty_like(out) if out.dim() else None)
        return out


def leaf(*shape: int, dtype: torch.dtype = BF16) -> Made:
    """A tensor that takes a gradient."""
    return Made(shape, dtype, True)


def data(*shape: int, dtype: torch.dtype = BF16) -> Made:
    """A tensor without a gradient; integers and booleans are zeros."""
    return Made(shape, dtype, False)


def ids(*shape: int) -> Made:
    return Made(shape, INT64, False)


def all_cases() -> dict[str, Case]:
    """Collect the cases by name."""
    from tests.doctor.engines.meta import attention_cases, graph_cases, kernel_cases

    return kernel_cases.CASES | attention_cases.CASES | graph_cases.CASES


def measure(case: Case) -> list[int]:
    """Give the peak of allocated and of reserved bytes on the CUDA device, from a fork of this process."""
    read, write = os.pipe()
    if os.fork() == 0:
        kept = case.run(case.make("cuda"))
        peaks = [torch.cuda.max_memory_allocated(), torch.cuda.max_memory_reserved()]
        os.write(write, json.dumps(peaks).encode())
        os._exit(0 if kept is kept else 1)
    os.close(write)
    with os.fdopen(read) as pipe:
        return [int(number) for number in json.load(pipe)]


if __name__ == "__main__":
    torch.backends.cudnn.enabled = False
    torch.backends.cuda.enable_cudnn_sdp(False)
    print(json.dumps({name: measure(case) for name, case in all_cases().items()}, indent=1))
