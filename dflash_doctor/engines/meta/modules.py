"""Follow which module runs, by forward hooks on all modules."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook

from dflash_doctor.engines.meta.recorder import Recorder


@contextmanager
def follow_modules(recorder: Recorder, *roots: torch.nn.Module) -> Iterator[None]:
    """Keep `recorder.module` at the dotted path of the module whose forward runs."""
    names: dict[int, str] = {}
    for root in roots:
        for name, module in root.named_modules():
            names.setdefault(id(module), name or type(module).__name__)
    outer: list[str] = []

    def enter(module: torch.nn.Module, args: Any) -> None:
        outer.append(recorder.module)
        recorder.module = names.get(id(module)) or type(module).__name__

    def leave(module: torch.nn.Module, args: Any, output: Any) -> None:
        recorder.module = outer.pop() if outer else ""

    handles = (
        register_module_forward_pre_hook(enter),
        register_module_forward_hook(leave, always_call=True),
    )
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()
