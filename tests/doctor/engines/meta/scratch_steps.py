"""Replay the model of a kernel's scratch, and list what it does."""

from typing import Any

import torch

from dflash_doctor.engines.meta import attention_scratch, scratch
from dflash_doctor.engines.meta.device import Device
from tests.doctor.engines.tracing import A100


def scratch_of(
    op: str, *args: Any, outputs: list[torch.Tensor] | None = None, device: Device = A100
) -> list[str]:
    """List in order what a kernel takes (+bytes) and drops (-bytes), and when it makes its outputs (out).

    What it has not dropped by the end goes with the op.
    """
    steps: list[str] = []
    sizes: list[int] = []

    def take(num_bytes: int, dtype: str) -> int:
        steps.append(f"+{num_bytes}")
        sizes.append(num_bytes)
        return len(sizes) - 1

    def drop(number: int) -> None:
        steps.append(f"-{sizes[number]}")

    def give(count: int | None = None) -> None:
        steps.append("out")

    inputs = [arg for arg in args if isinstance(arg, torch.Tensor)]
    models = scratch.MODELS | attention_scratch.MODELS
    models[op](
        scratch.Call(args, {}, outputs or [torch.empty(1, device="meta")], device, take, drop, give, inputs)
    )
    return steps
