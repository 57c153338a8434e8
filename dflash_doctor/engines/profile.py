"""Trace one model's forward pass or training step, as `profile` runs it."""

import time
from collections.abc import Callable, Iterable
from typing import Any

import torch

from dflash_doctor.engines.meta.linear_attention import linear_attention
from dflash_doctor.engines.meta.recorder import Recorder
from dflash_doctor.engines.meta.session import device_of, meta_session
from dflash_doctor.engines.models import build_causal_lm
from dflash_doctor.errors import DoctorError
from dflash_doctor.records.plan import ProfileRequest
from dflash_doctor.records.trace import AllocationTrace

FORWARDS, TRAIN_STEPS = 2, 3


def trace_profile(request: ProfileRequest) -> AllocationTrace:
    """Run the request on meta: two forwards, or three training steps, after loading."""
    started = time.perf_counter()
    dtype = getattr(torch, request.dtype)
    model = build_causal_lm(request.model.config, dtype=dtype, attention=request.attention)
    recorder = Recorder()
    with meta_session(recorder, device_of(request.card)), linear_attention(request.linear_attention):
        load(model, recorder)
        recorder.set_phase("forward")
        ids = torch.zeros(request.batch, request.seq, dtype=torch.long).to("meta")
        recorder.set_category([ids], "inputs")
        try:
            _run(request, model, ids, recorder)
        except (RuntimeError, ValueError, TypeError, IndexError) as error:
            raise DoctorError(
                f"the step of {request.model.name} failed: {error}",
                hint="check --batch, --seq and --attn against the config",
                exit_code=3,
            ) from error
    vocab: Any = getattr(model.config, "vocab_size", None)
    return recorder.finish(
        role="profile",
        steady=None,
        vocab_size=vocab,
        seconds=time.perf_counter() - started,
    )


def load(model: torch.nn.Module, recorder: Recorder) -> None:
    """Give every parameter and buffer its storage, as loading on a device does, tied ones once."""
    recorder.set_phase("load")
    model.to_empty(device="meta")
    tie = getattr(model, "tie_weights", None)
    if callable(tie):
        tie()
    recorder.name_parameters(model)


def _run(request: ProfileRequest, model: torch.nn.Module, ids: torch.Tensor, recorder: Recorder) -> None:
    if request.mode == "train":
        _train(request, model, ids, recorder)
        return
    model.eval()
    called: Any = model.base_model if request.mode == "body" else model
    with torch.no_grad():
        for _ in range(FORWARDS):
            recorder.set_phase("forward")
            called(input_ids=ids, use_cache=False)


def _train(request: ProfileRequest, model: Any, ids: torch.Tensor, recorder: Recorder) -> None:
    model.train()
    if request.gradient_checkpointing:
        model.gradient_checkpointing_enable({"use_reentrant": False})
    recorder.set_phase("forward")
    optimizer = build_optimizer(request.optimizer, model.parameters())
    for _ in range(TRAIN_STEPS):
        recorder.set_phase("forward")
        loss = model(input_ids=ids, labels=ids, use_cache=False).loss
        loss.backward()
        recorder.set_category((p.grad for p in model.parameters() if p.grad is not None), "gradients")
        recorder.set_phase("optimizer")
        if request.clip is not None:
            torch.nn.utils.clip_grad_norm_(model.parameters(), request.clip)
        optimizer.step()
        recorder.set_category(_state_tensors(optimizer), "optimizer_state")
        optimizer.zero_grad()


def build_optimizer(name: str, parameters: Iterable[torch.nn.Parameter]) -> torch.optim.Optimizer:
    """Build the optimizer of that name: adamw, adamw-fused or sgd."""
    build: dict[str, Callable[[], torch.optim.Optimizer]] = {
        "adamw": lambda: torch.optim.AdamW(parameters, lr=1e-4),
        "adamw-fused": lambda: torch.optim.AdamW(parameters, lr=1e-4, fused=True),
        "sgd": lambda: torch.optim.SGD(parameters, lr=1e-4),
    }
    if name not in build:
        raise DoctorError(f"unknown optimizer {name!r}", hint=f"--optimizer takes {', '.join(build)}")
    return build[name]()


def _state_tensors(optimizer: torch.optim.Optimizer) -> Iterable[torch.Tensor]:
    for state in optimizer.state.values():
        for value in state.values():
            if isinstance(value, torch.Tensor) and value.is_meta:
                yield value
