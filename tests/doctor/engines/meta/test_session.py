"""What is in place while a step runs, and nothing of it afterwards."""

import gc
import importlib
from typing import Any

import pytest
import torch
import torch.nn.attention.flex_attention
import torch.nn.modules.module as module_hooks
from torch import nn
from torch.utils import _foreach_utils
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

from dflash_doctor.engines.meta.device import Device
from dflash_doctor.engines.meta.recorder import Recorder
from dflash_doctor.engines.meta.session import device_of, meta_session
from dflash_doctor.records.plan import ByteBand, Card


def surroundings() -> dict[str, Any]:
    """Give everything that a session may touch."""
    functional = torch.nn.functional
    optimizer: Any = importlib.import_module("torch.optim.optimizer")
    return {
        "attention": functional.scaled_dot_product_attention,
        "softmax": (functional.softmax, torch.softmax, torch.Tensor.softmax),
        "log-softmax": (functional.log_softmax, torch.log_softmax, torch.Tensor.log_softmax),
        "dropout": (functional.dropout, torch.dropout),
        "rms-norm": (functional.rms_norm, torch.rms_norm),
        "flex": torch.nn.attention.flex_attention.flex_attention,
        "compile": torch.compile,
        "foreach": (
            optimizer._get_foreach_kernels_supported_devices,
            optimizer._get_fused_kernels_supported_devices,
            _foreach_utils._get_foreach_kernels_supported_devices,
        ),
        "hooks": (
            dict(module_hooks._global_forward_hooks),
            dict(module_hooks._global_forward_pre_hooks),
            dict(module_hooks._global_forward_hooks_always_called),
        ),
        "modes": _get_current_dispatch_mode_stack(),
        "gc": gc.get_threshold(),
        "dtype": torch.get_default_dtype(),
    }


def test_everything_is_as_it_was_after_a_session() -> None:
    before = surroundings()
    with meta_session(Recorder(), Device()):
        inside = surroundings()
        nn.Linear(4, 4, device="meta")(torch.empty(2, 4, device="meta"))
    assert surroundings() == before
    unlike = {name for name, value in inside.items() if value != before[name]}
    assert unlike == set(before) - {"dtype"}


def test_everything_is_as_it_was_after_a_step_that_raised() -> None:
    class Failing(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            raise RuntimeError("in the step")

    before = surroundings()
    with pytest.raises(RuntimeError, match="in the step"), meta_session(Recorder(), Device()):
        nn.Sequential(Failing())(torch.empty(3, device="meta"))
    assert surroundings() == before


def test_a_session_leaves_real_computation_as_it_is() -> None:
    x = torch.tensor([[1.0, 2.0], [3.0, 4.0]])
    with meta_session(Recorder(), Device()):
        product = x @ x
    assert product.tolist() == [[7.0, 10.0], [15.0, 22.0]]


def test_the_device_is_the_cards() -> None:
    band = ByteBand(low=0, likely=0, high=0, basis="")
    card = Card(
        name="", memory_bytes=0, usable_bytes=0, compute_capability=(8, 9), num_multiprocessors=142,
        context=band, nccl_per_peer=band, source="",
    )  # fmt: skip
    assert device_of(card) == Device(compute_capability=(8, 9), num_multiprocessors=142)
    assert device_of(None) == Device(compute_capability=(12, 0), num_multiprocessors=188)
