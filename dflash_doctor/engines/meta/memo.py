"""Remember the outputs of ops by their inputs' metadata: a model's layers repeat each other.

Meta kernels written in Python take most of a trace's time. Shapes, strides and dtypes of an op's outputs
follow from those of its inputs and its other arguments, so a second call makes them anew without the kernel.
"""

from typing import Any

import torch

_Recipe = tuple[torch.Size, tuple[int, ...], torch.dtype]


class OutputMemo:
    """Recipes for the outputs of ops that neither mutate nor alias their inputs."""

    def __init__(self) -> None:
        self._recipes: dict[Any, tuple[bool, list[_Recipe]] | None] = {}

    def run(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run an op, by recipe where one is known."""
        try:
            key = (func, _key(args), _key(tuple(kwargs.items())) if kwargs else None)
        except _Unkeyed:
            return func(*args, **kwargs)
        recipe = self._recipes.get(key, 0)
        if isinstance(recipe, tuple):
            return _cook(recipe)
        out = func(*args, **kwargs)
        if recipe == 0:
            self._recipes[key] = _recipe_of(out, args)
        return out


class _Unkeyed(Exception):
    pass


def _key(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        if not value.is_meta:
            raise _Unkeyed
        return value.shape, value.stride(), value.dtype
    if isinstance(value, (tuple, list)):
        return tuple([_key(item) for item in value])
    if isinstance(value, (int, float)):
        return type(value), value
    if value is None or isinstance(
        value, (str, torch.dtype, torch.device, torch.layout, torch.memory_format)
    ):
        return value
    raise _Unkeyed


def _recipe_of(out: Any, args: Any) -> tuple[bool, list[_Recipe]] | None:
    single = isinstance(out, torch.Tensor)
    outputs = [out] if single else list(out) if isinstance(out, tuple) else []
    if not outputs or not all(isinstance(t, torch.Tensor) and t.is_meta for t in outputs):
        return None
    held = {t.untyped_storage()._cdata for t in _tensors(args)}
    own = {t.untyped_storage()._cdata for t in outputs}
    if held & own or len(own) != len(outputs):
        return None
    if any(t.storage_offset() or t.untyped_storage().nbytes() != _span(t) for t in outputs):
        return None
    return single, [(t.shape, t.stride(), t.dtype) for t in outputs]


def _span(tensor: torch.Tensor) -> int:
    if tensor.numel() == 0:
        return 0
    last = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return (last + 1) * tensor.element_size()


def _tensors(value: Any) -> list[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        return [value]
    return [t for item in value for t in _tensors(item)] if isinstance(value, (tuple, list)) else []


def _cook(recipe: tuple[bool, list[_Recipe]]) -> Any:
    single, outputs = recipe
    made = [torch.empty_strided(size, stride, dtype=dtype, device="meta") for size, stride, dtype in outputs]
    return made[0] if single else tuple(made)
