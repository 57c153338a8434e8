"""The dispatch mode: let every op run on meta tensors, keep shadows true, and tell the recorder."""

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from dflash_doctor.engines.meta import attention_scratch, scratch
from dflash_doctor.engines.meta.accumulation import (
    is_accumulation,
    is_write_into_zeros,
    sole_use_count,
    takes_in_place,
)
from dflash_doctor.engines.meta.attention import efficient_backward, efficient_forward
from dflash_doctor.engines.meta.device import Device
from dflash_doctor.engines.meta.memo import OutputMemo
from dflash_doctor.engines.meta.ops import OpInfo, distinct_elements, info_of, tensors_in
from dflash_doctor.engines.meta.recorder import DEEP_STACK_BYTES, STACK_DEPTH, Recorder
from dflash_doctor.engines.meta.shadows import Shadows, is_integer
from dflash_doctor.records.trace import Read, Site

PHASE_MARK = "phase:"
"""`record_function("phase:optimizer")` in a step begins a phase of that name."""


def _pointwise_loss(
    input: torch.Tensor, target: torch.Tensor, reduction: int = 1, *rest: Any, **more: Any
) -> torch.Tensor:
    """Shape a loss that keeps the memory of its pointwise losses when it is reduced (PointwiseOps.cpp)."""
    loss = input.new_empty(torch.broadcast_shapes(input.shape, target.shape))
    return loss.resize_(()) if reduction else loss


_INSTEAD: dict[str, Any] = {
    "mse_loss": _pointwise_loss,
    "smooth_l1_loss": _pointwise_loss,
    "_scaled_dot_product_efficient_attention": efficient_forward,
    "_scaled_dot_product_efficient_attention_backward": efficient_backward,
}
"""Ops whose meta kernel does not give what CUDA gives."""

_SCRATCH = scratch.MODELS | attention_scratch.MODELS

_BIRTH_ORDER: dict[str, tuple[int, ...]] = {
    "_scaled_dot_product_efficient_attention": (2, 3, 0, 1),
    "native_dropout": (1, 0),
}
"""Order in which a kernel allocates its outputs, where it is not their own."""


class MetaMode(TorchDispatchMode):
    """Record what the ops on meta tensors would allocate on `device`."""

    def __init__(self, recorder: Recorder, device: Device) -> None:
        start: Any = super().__init__
        start()
        self.recorder = recorder
        self.device = device
        self.shadows = Shadows()
        self._memo = OutputMemo()
        recorder.on_death = self.shadows.drop
        sole_use_count()
        self._workspaces: set[tuple[bool, str]] = set()
        self._outer_phases: list[str] = []

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        named = dict(kwargs) if kwargs else {}
        info = info_of(func)
        if info.base.startswith("_record_function"):
            return self._mark_phase(func, info, args, named)
        if info.is_composite:
            with self:
                return func.decompose(*args, **named)
        inputs = tensors_in(args, [])
        if named:
            tensors_in(list(named.values()), inputs)
        if not any(t.is_meta for t in inputs) and not _goes_to_meta(named):
            return func(*args, **named)
        if info.reads_value or (info.base == "_to_copy" and _leaves_meta(inputs, named)):
            return self._read_value(func, info, args, named)
        if info.base == "copy_" and not inputs[0].is_meta:
            return self._read_into(inputs)
        if info.makes_value_shape or (info.base == "index" and _has_mask(args)):
            out = self._run_value_shape(func, info, args, named)
        elif is_write_into_zeros(info.base, 1) or (
            is_accumulation(info.base, args, 1) and takes_in_place(args[0])
        ):
            out = args[0]
        elif info.base in _INSTEAD:
            out = _INSTEAD[info.base](*args, **named)
        elif info.mutates or info.is_view:
            out = func(*args, **named)
        else:
            out = self._memo.run(func, args, named)
        self._record(func, info, args, named, inputs, out)
        return out

    # -- recording ---------------------------------------------------------------------------------

    def _record(
        self, func: Any, info: OpInfo, args: tuple[Any, ...], kwargs: dict[str, Any],
        inputs: list[torch.Tensor], out: Any,
    ) -> None:  # fmt: skip
        recorder = self.recorder
        outputs = tensors_in(out, [])
        if info.base in _BIRTH_ORDER:
            outputs = [outputs[i] for i in _BIRTH_ORDER[info.base]]
        outputs = [t for t in outputs if t.is_meta]
        if info.is_view:
            self._record_view(info, inputs, outputs)
            return
        known = [recorder.id_of(t) for t in outputs]
        new_bytes = sum(
            t.untyped_storage().nbytes() for t, k in zip(outputs, known, strict=True) if k is None
        )
        site = recorder.site(info.name, STACK_DEPTH if new_bytes >= DEEP_STACK_BYTES else 1)
        held: list[int] = []
        writes: list[int] = []
        if info.is_unmodelled:
            recorder.untraced.setdefault(info.name)

        def give(count: int | None = None) -> None:
            for output, storage in list(zip(outputs, known, strict=True))[len(writes) : count]:
                writes.append(storage if storage is not None else recorder.adopt(output, "activations", site))

        model = _SCRATCH.get(info.base)
        if model is not None:
            self._run_scratch(model, (args, kwargs, inputs, outputs), site, held, give)
        give()
        if info.mutates and not outputs:
            writes = [w for w in (recorder.id_of(t) for t in inputs[:1]) if w is not None]
        self._enter_workspace(info, site)
        reads = self._reads(info, inputs)
        index = _index_elements(args) if info.picks_rows else None
        recorder.op(site, reads, writes, [], index)
        for temporary in reversed(held):
            recorder.free(temporary)
        if info.mutates or any(is_integer(t) for t in outputs):
            self._keep_values(func, info, args, kwargs, outputs)

    def _record_view(self, info: OpInfo, inputs: list[torch.Tensor], outputs: list[torch.Tensor]) -> None:
        recorder = self.recorder
        viewed = [k for k in (recorder.id_of(t) for t in inputs[:1]) if k is not None]
        for output in outputs:
            if recorder.id_of(output) is None:
                recorder.adopt(output, "activations", recorder.site(info.name, 1))
        if viewed:
            recorder.op(recorder.site(info.name, 1), [], [], viewed, None)

    def _reads(self, info: OpInfo, inputs: list[torch.Tensor]) -> list[Read]:
        reads = []
        for position, tensor in enumerate(inputs):
            if position == 0 and info.write_only:
                continue
            storage = self.recorder.id_of(tensor) if tensor.is_meta else None
            if storage is not None:
                reads.append(
                    Read(storage=storage, elements=distinct_elements(tensor), shape=tuple(tensor.shape),
                         argument=position)
                )  # fmt: skip
        return reads

    def _run_scratch(
        self, model: Callable[[scratch.Call], None], call: tuple[Any, Any, Any, Any], site: Site,
        held: list[int], give: Callable[..., None],
    ) -> None:  # fmt: skip
        """Replay what a kernel allocates; `held` ends with the scratch that it did not drop."""
        args, kwargs, inputs, outputs = call

        def take(num_bytes: int, dtype: str) -> int:
            held.append(self.recorder.temporary(num_bytes, dtype, site))
            return held[-1]

        def drop(storage: int) -> None:
            held.remove(storage)
            self.recorder.free(storage)

        model(scratch.Call(args, kwargs, outputs, self.device, take, drop, give, inputs))

    def _enter_workspace(self, info: OpInfo, site: Site) -> None:
        if not info.is_product:
            return
        key = (torch._C._current_graph_task_id() >= 0, "cublas")
        if key not in self._workspaces:
            self._workspaces.add(key)
            self.recorder.temporary(self.device.cublas_workspace_bytes, "uint8", site, "workspace")

    # -- values ------------------------------------------------------------------------------------

    def _keep_values(
        self, func: Any, info: OpInfo, args: tuple[Any, ...], kwargs: dict[str, Any],
        outputs: list[torch.Tensor],
    ) -> None:  # fmt: skip
        first = args[0] if info.mutates and args else None
        targets = [first] if isinstance(first, torch.Tensor) else outputs
        if info.mutates and not (targets and is_integer(targets[0])):
            return
        try:
            values = self.shadows.run(func, args, kwargs)
        except (RuntimeError, TypeError, NotImplementedError):
            values = None
        if info.mutates:
            if values is None:
                self.shadows.drop(targets[0].untyped_storage()._cdata)
            return
        if values is None:
            return
        for tensor, value in zip(outputs, tensors_in(values, []), strict=False):
            if is_integer(tensor) and value.device.type == "cpu":
                self.shadows.set(tensor, value)

    def _read_value(self, func: Any, info: OpInfo, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        try:
            value = self.shadows.run(func, args, kwargs)
        except RuntimeError:
            value = None
        inputs = tensors_in(args, [])
        floating = info.base == "_local_scalar_dense" and inputs[0].is_floating_point()
        self.recorder.value_read(self.recorder.site(info.name, 2), value is not None, floating)
        for tensor in inputs:
            known = self.recorder.id_of(tensor) if tensor.is_meta else None
            if known is not None:
                self.recorder.op(
                    self.recorder.site(info.name, 2),
                    [Read(storage=known, elements=tensor.numel(), shape=tuple(tensor.shape), argument=0)],
                    [], [], None,
                )  # fmt: skip
        if value is not None:
            return value
        if info.base == "_to_copy":
            return torch.zeros(inputs[0].shape, dtype=kwargs.get("dtype") or inputs[0].dtype)
        if info.base == "_local_scalar_dense":
            return torch.zeros((), dtype=inputs[0].dtype).item()
        return False

    def _read_into(self, inputs: list[torch.Tensor]) -> torch.Tensor:
        """Copy a device tensor into a host tensor; unknown values arrive as zeros."""
        target, source = inputs[0], inputs[1]
        value = self.shadows.get(source)
        self.recorder.value_read(self.recorder.site("aten.copy_.default", 2), value is not None)
        return target.zero_() if value is None else target.copy_(value)

    def _run_value_shape(self, func: Any, info: OpInfo, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run an op whose output shape depends on values; unknown values select everything."""
        value = self.shadows.run(func, args, kwargs) if info.base != "index" else None
        if info.base == "index":
            return self._run_masked_index(func, info, args)
        site = self.recorder.site(info.name, 2)
        self.recorder.value_read(site, value is not None)
        if value is not None:
            return _like(value)
        source = tensors_in(args, [])[0]
        if info.base == "nonzero":
            return torch.empty(source.numel(), source.dim(), dtype=torch.int64, device="meta")
        if info.base == "masked_select":
            return torch.empty(source.numel(), dtype=source.dtype, device="meta")
        return func(*args, **kwargs)

    def _run_masked_index(self, func: Any, info: OpInfo, args: tuple[Any, ...]) -> Any:
        source, indices = args[0], args[1]
        known, picked = True, []
        for index in indices:
            if index is None or index.dtype not in (torch.bool, torch.uint8):
                picked.append(index)
                continue
            value = self.shadows.get(index)
            known = known and value is not None
            count = int(value.sum()) if value is not None else index.numel()
            picked.extend(torch.empty(count, dtype=torch.int64, device="meta") for _ in range(index.dim()))
        self.recorder.value_read(self.recorder.site(info.name, 2), known)
        return func(source, picked)

    # -- phases ------------------------------------------------------------------------------------

    def _mark_phase(self, func: Any, info: OpInfo, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if "enter" in info.base:
            name = args[0] if isinstance(args[0], str) else ""
            self._outer_phases.append(self.recorder.phase)
            if name.startswith(PHASE_MARK):
                self.recorder.set_phase(name.removeprefix(PHASE_MARK))
        elif self._outer_phases:
            outer = self._outer_phases.pop()
            if outer != self.recorder.phase:
                self.recorder.set_phase(outer)
        return func(*args, **kwargs)


def _goes_to_meta(kwargs: dict[str, Any]) -> bool:
    device = kwargs.get("device")
    return device is not None and torch.device(device).type == "meta"


def _leaves_meta(inputs: list[torch.Tensor], kwargs: dict[str, Any]) -> bool:
    device = kwargs.get("device")
    return device is not None and torch.device(device).type != "meta" and inputs[0].is_meta


def _has_mask(args: tuple[Any, ...]) -> bool:
    return any(i is not None and i.dtype in (torch.bool, torch.uint8) for i in args[1])


def _index_elements(args: tuple[Any, ...]) -> int | None:
    numbers = [t.numel() for t in tensors_in(args[1:], [])]
    return max(numbers, default=None)


def _like(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return torch.empty_like(value, device="meta")
    if isinstance(value, (list, tuple)):
        return type(value)(_like(item) for item in value)
    return value
