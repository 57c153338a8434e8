"""Flags over a plan file over a preset: one RunPlan, and what was assumed on the way."""

import re
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from functools import partial
from pathlib import Path

from dflash_doctor.errors import DoctorError
from dflash_doctor.intake.allocator_conf import allocator_notes
from dflash_doctor.intake.nvml import FoundGpus, gpus_from_nvml
from dflash_doctor.intake.placement import place_roles
from dflash_doctor.intake.plan_build import build_plan, merge
from dflash_doctor.intake.plan_file import settings_of_file, settings_of_preset
from dflash_doctor.intake.plan_keys import KEYS, MAX_GPUS
from dflash_doctor.intake.plan_values import convert
from dflash_doctor.intake.settings import Place, Problems, Setting, Settings
from dflash_doctor.records.plan import RunPlan
from dflash_doctor.units import parse_bytes, parse_count

DEFAULT_PRESET = "founding-run"


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanFlags:
    """The flags of a plan as they were typed; None where a flag was not given."""

    plan: Path | None = None
    preset: str | None = None
    model: str | None = None
    token_budget: str | None = None
    max_anchors: str | None = None
    document_tokens: str | None = None
    draft_layers: str | None = None
    layer_ids: str | None = None
    block_size: str | None = None
    loss: str | None = None
    dtype: str | None = None
    optimizer: str | None = None
    recompute: str | None = None
    channel_slots: str | None = None
    target_rows: str | None = None
    linear_attention: str | None = None
    allocator: str | None = None
    margin: str | None = None
    target_step: str | None = None
    draft_step: str | None = None
    targets: str | None = None
    drafters: str | None = None
    gpus: str | None = None
    gpu: str | None = None
    gpu_memory: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanInput:
    """A plan, and what must be said aloud about how it came about."""

    plan: RunPlan
    notes: tuple[str, ...] = ()


def plan_from_flags(flags: PlanFlags, *, find_gpus: Callable[[], FoundGpus] = gpus_from_nvml) -> PlanInput:
    """Build the plan that the flags ask for; without any, the founding run.

    Raises one DoctorError with every mistake of flags and file.
    """
    if flags.plan is not None and flags.preset is not None:
        raise DoctorError(
            "--preset: it cannot be given together with --plan",
            hint="a plan file stands on its own; flags go over it",
        )
    problems = Problems()
    asked = settings_of_file(flags.plan, problems) if flags.plan is not None else {}
    asked = merge(asked, settings_of_flags(flags, problems))
    preset = flags.preset or (None if flags.plan is not None else DEFAULT_PRESET)
    settings = merge(settings_of_preset(preset, problems), asked) if preset else asked
    settings, choice = place_roles(settings, asked, problems, find_gpus)
    plan = build_plan(settings, problems, choice.cards)
    problems.raise_if_any(str(flags.plan) if flags.plan is not None else "the plan")
    assert plan is not None
    if flags.plan is None and flags.preset is None and flags.model is not None:
        plan = replace(plan, name=_slug(plan.model.name))
    return PlanInput(plan=plan, notes=choice.notes + allocator_notes(plan.allocator))


def settings_of_flags(flags: PlanFlags, problems: Problems) -> Settings:
    """Convert the flags that were given; note those that cannot be."""
    given = {f"--{field.name.replace('_', '-')}": getattr(flags, field.name) for field in fields(flags)}
    settings: Settings = {}
    for path, flag, read in _READERS:
        if given[flag] is None:
            continue
        place = Place(key=flag)
        try:
            settings[path] = Setting(value=read(given[flag]), place=place)
        except DoctorError as error:
            problems.add_error(error, place)
    return settings


def _slug(name: str) -> str:
    """Make a plan's name of a model's."""
    return re.sub(r"[^A-Za-z0-9._-]+", "-", name).strip("-._")[:80] or "run"


_Reader = Callable[[str], object]
_READERS: tuple[tuple[str, str, _Reader], ...] = (
    ("model.ref", "--model", str),
    *((key.path, key.flag, partial(convert, key, place=Place(key=key.flag))) for key in KEYS if key.flag),
    ("placement.gpus", "--gpus", partial(parse_count, flag="--gpus", maximum=MAX_GPUS, is_size=False)),
    ("placement.gpu", "--gpu", str),
    ("placement.gpu_memory", "--gpu-memory", partial(parse_bytes, flag="--gpu-memory")),
)
