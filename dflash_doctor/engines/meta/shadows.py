"""Real values of small integer and boolean tensors, kept beside their meta storages.

Integers steer branches: whether a row is packed, how many rows a mask selects. They are small, so
each such meta storage has a twin on the CPU; a view of the one is the same view of the other, and an
in-place op on the one is repeated on the other. Floating-point data has no twin.
"""

from collections.abc import Sequence
from typing import Any

import torch

MAX_ELEMENTS = 4_000_000
"""Larger tensors get no twin."""

_INTEGERS = frozenset(
    {torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64}
)  # fmt: skip


def is_integer(tensor: torch.Tensor) -> bool:
    """Say whether a tensor's values are worth keeping: integer or boolean, and small."""
    return tensor.dtype in _INTEGERS and tensor.numel() <= MAX_ELEMENTS


class Shadows:
    """The CPU twins of meta storages, by storage."""

    def __init__(self) -> None:
        self._twins: dict[int, torch.UntypedStorage] = {}

    def set(self, tensor: torch.Tensor, value: torch.Tensor) -> None:
        """Give a meta tensor's storage the values of `value` (same shape and dtype, on the CPU)."""
        storage = tensor.untyped_storage()
        twin = torch.empty(storage.nbytes(), dtype=torch.uint8)
        self._twins[storage._cdata] = twin.untyped_storage()
        self._view(tensor, twin.untyped_storage()).copy_(value)

    def _view(self, tensor: torch.Tensor, twin: torch.UntypedStorage) -> torch.Tensor:
        view = torch.empty(0, dtype=tensor.dtype)
        return view.set_(twin, tensor.storage_offset(), tensor.shape, tensor.stride())

    def get(self, tensor: torch.Tensor) -> torch.Tensor | None:
        """Give the values of a tensor: its twin's, or itself where it lives on the CPU; None if unknown."""
        if tensor.device.type != "meta":
            return tensor
        twin = self._twins.get(tensor.untyped_storage()._cdata)
        if twin is None or tensor.dtype not in _INTEGERS or twin.nbytes() < tensor.untyped_storage().nbytes():
            return None
        return self._view(tensor, twin)

    def drop(self, cdata: int) -> None:
        """Forget a storage's values: it died, or something unknown was written into it."""
        self._twins.pop(cdata, None)

    def run(self, func: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        """Repeat an op on the twins; None where an input is unknown or the op fails on them."""
        unknown = False

        def real(value: Any) -> Any:
            nonlocal unknown
            if isinstance(value, torch.Tensor):
                twin = self.get(value)
                if twin is None or not (is_integer(value) or value.device.type != "meta"):
                    unknown = True
                return twin
            if isinstance(value, (list, tuple)):
                return type(value)(real(item) for item in value)
            if isinstance(value, torch.device) and value.type != "cpu":
                return torch.device("cpu")
            return value

        real_args = [real(arg) for arg in args]
        real_kwargs = {key: real(value) for key, value in kwargs.items()}
        if unknown:
            return None
        return func(*real_args, **real_kwargs)
