"""Follow which module runs, by forward hooks on all modules."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook

from dflash_doctor.engines.meta.recorder import Recorder


@contextmanager
def follow_modules(recorder: Recorder) -> Iterator[None]:
    """Keep `recorder.module` at the dotted path of the module whose forward runs.

    The outermost module that runs gives the names of those inside it; one that is not among them, such as
    a shared activation, is named after its caller and its class.
    """
    names: dict[int, str] = {}
    outer: list[str] = []

    def enter(module: torch.nn.Module, args: Any) -> None:
        if id(module) not in names and not outer:
            for name, inner in module.named_modules():
                names.setdefault(id(inner), name or type(module).__name__)
        outer.append(recorder.module)
        own = names.get(id(module))
        recorder.module = own if own is not None else f"{recorder.module}.{type(module).__name__}".strip(".")

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
