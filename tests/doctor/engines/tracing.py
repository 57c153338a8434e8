"""Trace small steps of the tests' own, as the engine traces a model's."""

from collections.abc import Callable

import torch

from dflash_doctor.engines.meta.device import Device
from dflash_doctor.engines.meta.recorder import Recorder
from dflash_doctor.engines.meta.session import meta_session
from dflash_doctor.records.trace import AllocationTrace, Op, Storage

MIB = 1 << 20
BLACKWELL = Device()
HOPPER = Device(compute_capability=(9, 0), num_multiprocessors=132)
A100 = Device(compute_capability=(8, 0), num_multiprocessors=108)

Step = Callable[[], object]


def trace_step(build: Callable[[], Step], *, times: int = 1, device: Device = BLACKWELL) -> AllocationTrace:
    """Trace `times` calls of the step that `build` makes; what it makes beside the step is loading.

    The device of tensors is meta unless said otherwise. What a call returns is dropped before the next.
    """
    recorder = Recorder()
    with meta_session(recorder, device), torch.device("meta"):
        step = build()
        for _ in range(times):
            recorder.set_phase("forward")
            step()
    return recorder.finish(role="test", steady=None, vocab_size=None, seconds=0.0)


def ops_named(trace: AllocationTrace, *names: str) -> list[Op]:
    """Give the ops of these bare names, in order."""
    return [op for op in trace.ops if op.site.op.split(".")[1] in names]


def made_by(trace: AllocationTrace, *names: str) -> list[Storage]:
    """Give the storages that ops of these bare names made after loading, their scratch included."""
    return [s for s in trace.storages if s.born_at >= 0 and s.site.op.split(".")[1] in names]


def made_in_step(trace: AllocationTrace) -> list[Storage]:
    """Give all storages made after loading."""
    return [storage for storage in trace.storages if storage.born_at >= 0]


def backward_of(out: torch.Tensor) -> None:
    """Run backward with a dense gradient."""
    out.backward(torch.empty_like(out) if out.dim() else None)


def linear(inputs: int, outputs: int, dtype: torch.dtype = torch.bfloat16) -> torch.nn.Linear:
    """Make a linear layer without a bias."""
    return torch.nn.Linear(inputs, outputs, bias=False, dtype=dtype)
