"""Trace what one GPU of a plan runs: its loading and its steps, the trainer's own or the user's."""

import importlib
import os
import sys
import time
import traceback
from collections.abc import Callable, Mapping
from typing import Any, Literal

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from dflash_doctor.engines.meta.linear_attention import linear_attention
from dflash_doctor.engines.meta.recorder import Recorder, is_hidden
from dflash_doctor.engines.meta.session import device_of, meta_session
from dflash_doctor.engines.models import build_config
from dflash_doctor.errors import DoctorError
from dflash_doctor.records.plan import RunPlan
from dflash_doctor.records.source import short_source
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

    Raises DoctorError: exit code 2 where a step cannot be found or transformers refuses the config, 3 where
    the step fails on meta.
    """
    started = time.perf_counter()
    build = find_step(plan, role)
    if step_reference(plan, role) == TRAINER_STEPS[role]:
        build_config(plan.model.config)
    gpu = 0 if role == "target" else plan.num_targets
    recorder = Recorder()
    card = plan.cards[gpu] if gpu < len(plan.cards) else None
    with meta_session(recorder, device_of(card)):
        try:
            module, step = _pair(build(plan, torch.device("meta")), step_reference(plan, role))
            _mark(recorder, module, step)
            with linear_attention(plan.linear_attention):
                steady = _run_steps(recorder, step)
        except DoctorError:
            raise
        except (Exception, SystemExit) as error:
            raise DoctorError(
                f"the {role} step {step_reference(plan, role)} failed on meta tensors"
                f" at {_place(error)}: {type(error).__name__}: {error}",
                hint=_remedy(error, role),
                exit_code=3,
            ) from error
    vocab = plan.model.config.get("vocab_size")
    return recorder.finish(
        role=role,
        steady=steady,
        vocab_size=vocab if isinstance(vocab, int) else None,
        seconds=time.perf_counter() - started,
    )


def find_step(plan: RunPlan, role: RoleName) -> Callable[..., Any]:
    """Import the function that builds the role's step; raises DoctorError where that fails."""
    return load_step(step_reference(plan, role), FLAGS[role])


def step_reference(plan: RunPlan, role: RoleName) -> str:
    """Name the role's step: the user's, or the trainer's."""
    own = plan.target_step if role == "target" else plan.draft_step
    return own or TRAINER_STEPS[role]


def load_step(reference: str, flag: str) -> Callable[..., Any]:
    """Import `module:function`, from this folder too; raises DoctorError naming the flag where that fails."""
    module_name, _, attribute = reference.partition(":")
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        if not attribute:
            raise ValueError("it has no colon")
        function = getattr(importlib.import_module(module_name), attribute)
    except (Exception, SystemExit) as error:
        is_plain = isinstance(error, ImportError | AttributeError | ValueError)
        what = str(error) if is_plain else f"{type(error).__name__} at {_place(error)}: {error}"
        raise DoctorError(
            f"cannot load the step {reference!r}: {what}",
            hint=f"{flag} takes module:function, with the module on PYTHONPATH or in this folder",
        ) from error
    if not callable(function):
        raise DoctorError(f"{reference!r} is no function", hint=f"{flag} takes module:function")
    return function  # type: ignore[no-any-return]


def _pair(built: Any, reference: str) -> tuple[Any, Callable[[], Any]]:
    """Check what a step's function gave: (module, step)."""
    if isinstance(built, tuple) and len(built) == 2 and callable(built[1]):
        return built
    what = type(built).__name__
    if isinstance(built, tuple):
        what = f"{len(built)} things" if len(built) != 2 else f"a step of type {type(built[1]).__name__}"
    raise DoctorError(
        f"{reference} returned {what}, not (module, step)",
        hint="function(plan, device) returns the module that it trains or runs, and a step without arguments",
    )


def _remedy(error: BaseException, role: RoleName) -> str:
    if "meta" in str(error):
        return f"the step must run on device 'meta', and make what it makes on its device ({FLAGS[role]})"
    return f"the step itself raised it: check the plan's sizes, or the code named by {FLAGS[role]}"


def _place(error: BaseException) -> str:
    """Name the innermost line outside torch that an error came from."""
    frames = [f for f in traceback.extract_tb(error.__traceback__) if not is_hidden(f.filename)]
    return f"{short_source(frames[-1].filename)}:{frames[-1].lineno}" if frames else "an unknown line"


def _mark(recorder: Recorder, module: Any, step: Any) -> None:
    """Say what the tensors that live through all steps are."""
    if isinstance(module, torch.nn.Module):
        recorder.name_parameters(module)
        _mark_gradients(recorder, module)
    holds: Mapping[Category, Any] = getattr(step, "holds", {})
    for category, tensors in holds.items():
        recorder.set_category(tensors, category)


def _mark_gradients(recorder: Recorder, module: torch.nn.Module) -> None:
    """Have every gradient of a parameter called so from its birth on, since a step may free it."""

    def mark(parameter: torch.Tensor) -> None:
        if parameter.grad is not None:
            recorder.set_category([parameter.grad], "gradients")

    for parameter in module.parameters():
        if parameter.requires_grad:
            parameter.register_post_accumulate_grad_hook(mark)


def _run_steps(recorder: Recorder, step: Callable[[], Any]) -> tuple[int, int] | None:
    """Run one step, or three where it leaves more than long-lived tensors behind; mark what repeats."""
    loaded = recorder.alive()
    start = len(recorder.events)
    _run_step(recorder, step)
    kept = recorder.alive() - loaded
    if loaded <= recorder.alive() and recorder.are_long_lived(kept):
        return start, len(recorder.events)
    for _ in range(MORE_STEPS):
        _run_step(recorder, step)
    return None


def _run_step(recorder: Recorder, step: Callable[[], Any]) -> None:
    recorder.set_phase("forward")

    def mark(optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
        _mark_optimizer(recorder, optimizer)

    handles = register_optimizer_step_pre_hook(mark), register_optimizer_step_post_hook(mark)
    try:
        result = step()
        del result
    finally:
        for handle in handles:
            handle.remove()


def _mark_optimizer(recorder: Recorder, optimizer: torch.optim.Optimizer) -> None:
    """Say what an optimizer holds: weights of its own beside the module's, their gradients, its state."""
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    masters = [p for p in parameters if recorder.category_of(p) == "activations"]
    recorder.set_category(masters, "master_weights")
    recorder.set_category((p.grad for p in parameters if p.grad is not None), "gradients")
    states = (value for state in optimizer.state.values() for value in state.values())
    recorder.set_category((value for value in states if isinstance(value, torch.Tensor)), "optimizer_state")
