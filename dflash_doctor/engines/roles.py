"""Trace what one GPU of a plan runs: its loading and its steps, the trainer's own or the user's."""

import importlib
import time
from collections.abc import Callable, Mapping
from typing import Any, Literal

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook

from dflash_doctor.engines.meta.linear_attention import linear_attention
from dflash_doctor.engines.meta.recorder import Recorder
from dflash_doctor.engines.meta.session import device_of, meta_session
from dflash_doctor.errors import DoctorError
from dflash_doctor.records.plan import RunPlan
from dflash_doctor.records.trace import AllocationTrace, Category

RoleName = Literal["target", "drafter"]

TRAINER_STEPS: Mapping[RoleName, str] = {
    "target": "dflash_train.roles:target_role",
    "drafter": "dflash_train.roles:drafter_role",
}
FLAGS: Mapping[RoleName, str] = {"target": "--target-step", "drafter": "--draft-step"}
MORE_STEPS = 2
"""Steps that are traced beyond the first where memory does not repeat from it alone."""


def trace_role(plan: RunPlan, role: RoleName) -> AllocationTrace:
    """Run a role's loading and steps on meta.

    Raises DoctorError: exit code 2 where a step cannot be found, 3 where it fails on meta.
    """
    started = time.perf_counter()
    build = load_step(step_reference(plan, role), FLAGS[role])
    gpu = 0 if role == "target" else plan.num_targets
    recorder = Recorder()
    card = plan.cards[gpu] if gpu < len(plan.cards) else None
    with meta_session(recorder, device_of(card)):
        try:
            module, step = build(plan, torch.device("meta"))
            _mark(recorder, module, step)
            with linear_attention(plan.linear_attention):
                steady = _run_steps(recorder, module, step)
        except DoctorError:
            raise
        except Exception as error:
            raise DoctorError(
                f"the {role} step {step_reference(plan, role)} failed on meta tensors: "
                f"{type(error).__name__}: {error}",
                hint=f"it must run on device 'meta'; check the plan's sizes or {FLAGS[role]}",
                exit_code=3,
            ) from error
    vocab = plan.model.config.get("vocab_size")
    return recorder.finish(
        role=role,
        steady=steady,
        vocab_size=vocab if isinstance(vocab, int) else None,
        seconds=time.perf_counter() - started,
    )


def step_reference(plan: RunPlan, role: RoleName) -> str:
    """Name the role's step: the user's, or the trainer's."""
    own = plan.target_step if role == "target" else plan.draft_step
    return own or TRAINER_STEPS[role]


def load_step(reference: str, flag: str) -> Callable[..., Any]:
    """Import `module:function`; raises DoctorError naming the flag where that fails."""
    module_name, _, attribute = reference.partition(":")
    try:
        if not attribute:
            raise ValueError("it has no colon")
        function = getattr(importlib.import_module(module_name), attribute)
    except (ImportError, AttributeError, ValueError) as error:
        raise DoctorError(
            f"cannot load the step {reference!r}: {error}",
            hint=f"{flag} takes module:function, with the module on PYTHONPATH or in this folder",
        ) from error
    if not callable(function):
        raise DoctorError(f"{reference!r} is no function", hint=f"{flag} takes module:function")
    return function  # type: ignore[no-any-return]


def _mark(recorder: Recorder, module: Any, step: Any) -> None:
    """Say what the tensors that live through all steps are."""
    if isinstance(module, torch.nn.Module):
        recorder.name_parameters(module)
    holds: Mapping[Category, Any] = getattr(step, "holds", {})
    for category, tensors in holds.items():
        recorder.set_category(tensors, category)


def _run_steps(recorder: Recorder, module: Any, step: Callable[[], Any]) -> tuple[int, int] | None:
    """Run one step, or three where it leaves more than long-lived tensors behind; mark what repeats."""
    loaded = recorder.alive()
    start = len(recorder.events)
    _run_step(recorder, module, step)
    kept = recorder.alive() - loaded
    if loaded <= recorder.alive() and recorder.are_long_lived(kept):
        return start, len(recorder.events)
    for _ in range(MORE_STEPS):
        _run_step(recorder, module, step)
    return None


def _run_step(recorder: Recorder, module: Any, step: Callable[[], Any]) -> None:
    recorder.set_phase("forward")
    handle = register_optimizer_step_post_hook(
        lambda optimizer, args, kwargs: _mark_optimizer(recorder, optimizer)
    )
    try:
        result = step()
        del result
    finally:
        handle.remove()
    if isinstance(module, torch.nn.Module):
        grads = [p.grad for p in module.parameters() if p.grad is not None]
        recorder.set_category(grads, "gradients")


def _mark_optimizer(recorder: Recorder, optimizer: torch.optim.Optimizer) -> None:
    for state in optimizer.state.values():
        tensors = [value for value in state.values() if isinstance(value, torch.Tensor) and value.is_meta]
        recorder.set_category(tensors, "optimizer_state")
