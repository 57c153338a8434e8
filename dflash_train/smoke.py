"""Run the trainer's own steps on this machine, with random weights and one synthetic row.

    SmokeSettings --build--> target, drafter, row --target_step, draft_step--> a line a step --> a summary

Nothing is loaded and nothing is kept: it shows that a target, a drafter and this machine's PyTorch go
together, before a real run does.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import torch
from huggingface_hub.errors import StrictDataclassError
from torch import nn
from transformers import AutoConfig

from dflash_doctor.errors import DoctorError
from dflash_doctor.records.plan import ModelSpec
from dflash_doctor.units import format_bytes
from dflash_train.models.draft_config import draft_config
from dflash_train.models.drafter import Drafter
from dflash_train.models.tables import FrozenTables, random_tables
from dflash_train.models.target import Target, build_target, target_layer_ids
from dflash_train.optim import MasterAdamW
from dflash_train.steps import (
    DraftBatch,
    FeatureSlot,
    LossSettings,
    StepResult,
    TargetBatch,
    allocate_slot,
    draft_step,
    synthetic_draft_batch,
    synthetic_target_batch,
    target_step,
)

TINY = ModelSpec(
    name="tiny-qwen3",
    config={
        "model_type": "qwen3",
        "vocab_size": 512,
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": 8,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "tie_word_embeddings": False,
    },
    origin="built in",
)
Result = TypeVar("Result")

LEARNING_RATE = 1e-3
NUM_FEATURES = 5
NUM_DOCUMENTS = 4
TARGET_ROWS = 8_192
TRAINED_BYTES = 16
"""Bytes of a trained parameter: weight, gradient, master weight and two moments."""

# What transformers raises for a configuration that it cannot build.
CONFIG_ERRORS = (
    StrictDataclassError,
    ValueError,
    TypeError,
    KeyError,
    AttributeError,
    ImportError,
    ZeroDivisionError,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class SmokeSettings:
    """Choose the models, the sizes of the row and the number of steps; model None is TINY."""

    model: ModelSpec | None = None
    tokens: int = 512
    anchors: int = 16
    block_size: int = 8
    draft_layers: int = 2
    loss: str = "ce"
    """ce, kl or ce-teacher."""
    steps: int = 3
    dtype: str = "bfloat16"


@dataclass(frozen=True, slots=True, kw_only=True)
class SmokeRun:
    """Hold everything that the two steps need."""

    target: Target
    drafter: Drafter
    tables: FrozenTables
    row: TargetBatch
    batch: DraftBatch
    slot: FeatureSlot
    optimizer: MasterAdamW
    loss: LossSettings

    def step(self) -> StepResult:
        """Run the target on the row, then train the drafter on its features."""
        target_step(self.target, self.row, self.slot)
        return draft_step(
            self.drafter, self.tables, self.batch, self.slot, self.optimizer, self.loss, lr=LEARNING_RATE
        )


def run_smoke(settings: SmokeSettings, device_name: str | None, say: Callable[[str], object]) -> bool:
    """Build, run the steps, say what each gives; tell whether every loss and gradient norm was finite.

    Raises DoctorError for a device that is not there and a model that cannot be built or does not fit.
    """
    device = choose_device(device_name)
    torch.manual_seed(0)
    run = build(settings, device)
    say(_describe(run, settings, device))
    losses, norms, rates = [], [], []
    for number in range(1, settings.steps + 1):
        started = time.perf_counter()
        result = _on_device(run.step, device)
        losses.append(float(result.loss))  # waits for the device
        norms.append(float(result.grad_norm))
        rates.append(settings.tokens / (time.perf_counter() - started))
        say(f"step {number}: loss {losses[-1]:.4f}, gradient norm {norms[-1]:.4f}, {rates[-1]:,.0f} tokens/s")
    finite = all(map(math.isfinite, losses + norms))
    say(_summary(losses, rates, device, finite))
    return finite


def choose_device(name: str | None) -> torch.device:
    """Read a device's name; None is cuda where there is one. Raises DoctorError where it is not there."""
    if name is None:
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name.strip().lower())
    except RuntimeError:
        device = None
    if device is None or device.type not in ("cpu", "cuda"):
        raise DoctorError(f"--device: {name!r} is not known", hint="--device is cpu, cuda or cuda:N")
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if device.type == "cuda" and (device.index or 0) >= count:
        there = f"PyTorch {torch.__version__} sees {count or 'no'} CUDA device{'' if count == 1 else 's'}"
        raise DoctorError(f"--device: there is no {device}: {there}", hint="pass --device cpu")
    return device


def build(settings: SmokeSettings, device: torch.device) -> SmokeRun:
    """Build models with random weights and a synthetic row; raise DoctorError where that cannot be."""
    model = settings.model or TINY
    dtype = getattr(torch, settings.dtype)
    try:
        fields: dict[str, Any] = dict(model.config)
        config = AutoConfig.for_model(str(fields.pop("model_type", "")), **fields).get_text_config()
        ids = feature_layers(config.num_hidden_layers)
        meta = _models(settings, config, ids, dtype, torch.device("meta"))
    except CONFIG_ERRORS as error:
        raise DoctorError(
            f"--model: {model.name} cannot be built: {' '.join(str(error).split())}",
            hint="check its configuration, or pass a preset",
        ) from error
    _check_memory(*meta, config, dtype, device)
    return _on_device(lambda: _prepare(settings, config, ids, dtype, device), device)


def feature_layers(num_layers: int) -> tuple[int, ...]:
    """Spread five captured layers over a target, or as many as a shallow one has room for."""
    for count in range(NUM_FEATURES, 1, -1):
        try:
            return target_layer_ids(num_layers, count)
        except ValueError:
            continue
    return target_layer_ids(num_layers, 1)


def _models(
    settings: SmokeSettings, config: Any, ids: Sequence[int], dtype: torch.dtype, device: torch.device
) -> tuple[Target, Drafter]:
    target = build_target(config, ids, dtype=dtype, device=device, with_last_hidden=settings.loss != "ce")
    drafter_config = draft_config(
        config,
        target_layer_ids=ids,
        mask_token_id=config.vocab_size - 1,
        num_layers=settings.draft_layers,
        block_size=settings.block_size,
        intermediate_size=getattr(config, "intermediate_size", None) or 4 * config.hidden_size,
    )
    return target, Drafter(drafter_config, device=device, dtype=dtype)


def _prepare(
    settings: SmokeSettings, config: Any, ids: Sequence[int], dtype: torch.dtype, device: torch.device
) -> SmokeRun:
    target, drafter = _models(settings, config, ids, dtype, device)
    tables = random_tables(
        config.vocab_size,
        config.hidden_size,
        dtype=dtype,
        device=device,
        tied=bool(getattr(config, "tie_word_embeddings", False)),
        final_norm=target.final_norm,
    )
    length = min(math.ceil(settings.tokens / NUM_DOCUMENTS), config.max_position_embeddings)
    return SmokeRun(
        target=target,
        drafter=drafter,
        tables=tables,
        row=synthetic_target_batch(
            settings.tokens, length, TARGET_ROWS, device, vocab_size=config.vocab_size
        ),
        batch=synthetic_draft_batch(
            settings.tokens,
            settings.anchors,
            settings.block_size,
            length,
            device,
            drafter_patterns=drafter.patterns,
            vocab_size=config.vocab_size,
            mask_token_id=drafter.mask_token_id,
            backend="flex" if device.type == "cuda" else "sdpa",
        ),
        slot=allocate_slot(
            settings.tokens,
            len(ids),
            config.hidden_size,
            dtype=dtype,
            device=device,
            with_last_hidden=settings.loss != "ce",
        ),
        optimizer=MasterAdamW(drafter.named_parameters()),
        loss=LossSettings(kind=settings.loss.replace("-", "_")),
    )


def _check_memory(
    target: Target, drafter: Drafter, config: Any, dtype: torch.dtype, device: torch.device
) -> None:
    """Refuse models whose weights alone do not fit, before the system ends the process for them."""
    table_bytes = config.vocab_size * config.hidden_size * dtype.itemsize
    tables = table_bytes * (1 if getattr(config, "tie_word_embeddings", False) else 2)
    frozen = sum(parameter.nbytes for parameter in target.parameters())
    needed = frozen + tables + num_parameters(drafter) * TRAINED_BYTES
    free = free_bytes(device)
    if free is not None and needed > free:
        raise DoctorError(
            f"--model: weights and optimizer state need {format_bytes(needed)}, "
            f"{device} has {format_bytes(free)} free",
            hint="pass a smaller --model; `dflash-doctor preflight` forecasts a run without its memory",
        )


def free_bytes(device: torch.device) -> int | None:
    """Read the free memory of a device; None where the system does not tell."""
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    meminfo = Path("/proc/meminfo")
    if not meminfo.exists():
        return None
    for line in meminfo.read_text(encoding="ascii").splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    return None


def num_parameters(module: nn.Module) -> int:
    """Count the parameters of a module."""
    return sum(parameter.numel() for parameter in module.parameters())


def _on_device(work: Callable[[], Result], device: torch.device) -> Result:
    """Do the work; raise DoctorError where the device's memory does not suffice."""
    try:
        return work()
    except torch.OutOfMemoryError as error:
        raise DoctorError(
            f"out of memory on {device}: {str(error).splitlines()[0]}",
            hint="lower --tokens or --anchors, or pass a smaller --model; "
            "`dflash-doctor preflight` forecasts a run without its memory",
            exit_code=1,
        ) from error


def _describe(run: SmokeRun, settings: SmokeSettings, device: torch.device) -> str:
    config = run.drafter.config
    layers = ", ".join(map(str, run.target.layer_ids))
    name = (settings.model or TINY).name
    return "\n".join(
        (
            f"target {name}: {config.num_target_layers} layers, hidden {config.hidden_size:,}, "
            f"vocabulary {config.vocab_size:,}, features of layers {layers}",
            f"drafter: {settings.draft_layers} layers, {num_parameters(run.drafter):,} parameters, "
            f"{settings.anchors:,} blocks of {settings.block_size} in {settings.tokens:,} tokens, "
            f"loss {settings.loss}",
            f"{settings.dtype} on {device}, PyTorch {torch.__version__}",
        )
    )


def _summary(losses: Sequence[float], rates: Sequence[float], device: torch.device, finite: bool) -> str:
    steps = "1 step" if len(losses) == 1 else f"{len(losses)} steps"
    parts = [f"{steps}: loss {losses[0]:.4f} to {losses[-1]:.4f}"]
    parts.append(f"median {statistics.median(rates):,.0f} tokens/s")
    if device.type == "cuda":
        peak, reserved = torch.cuda.max_memory_allocated(device), torch.cuda.max_memory_reserved(device)
        parts.append(f"peak {format_bytes(peak)} allocated, {format_bytes(reserved)} reserved")
    parts.append("all finite" if finite else "NOT FINITE: a loss or a gradient norm is no number")
    return "; ".join(parts)
