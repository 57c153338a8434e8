"""Which GPUs a plan runs on, and which of them are targets and drafters."""

import dataclasses
from collections.abc import Callable
from typing import Any

from dflash_doctor.errors import DoctorError
from dflash_doctor.intake.cards import DEFAULT_COUNT, CardChoice, card_from_flags, card_named, with_memory
from dflash_doctor.intake.nvml import FoundGpus
from dflash_doctor.intake.settings import Place, Problems, Setting, Settings, plural
from dflash_doctor.records.plan import Card, RunPlan
from dflash_doctor.units import format_bytes

_DEFAULTS = {field.name: field.default for field in dataclasses.fields(RunPlan)}
ONE_GPU = "one GPU holds one role in a forecast: the target; --targets 0 --drafters 1 forecasts the drafter"
_NAMED_BY = ("placement.cards", "placement.gpu", "placement.gpu_memory")


def named_cards(settings: Settings, problems: Problems) -> CardChoice | None:
    """Choose the GPUs that the settings name by kind or memory; None where they name none."""
    if not any(path in settings for path in _NAMED_BY):
        return None
    gpus = settings.get("placement.gpus")
    count = int(gpus.value) if gpus else None
    if "placement.cards" in settings:
        cards: tuple[Card, ...] = settings["placement.cards"].value
        return CardChoice(cards=_resized(cards, count or len(cards)))
    count = count or _usual_count(settings)
    gpu, memory = settings.get("placement.gpu"), settings.get("placement.gpu_memory")
    size = int(memory.value) if memory else None
    if gpu is None:
        choice = card_from_flags(gpu=None, gpu_memory=size, count=count)
        problems.hints += choice.notes
        return choice
    try:
        card = card_named(str(gpu.value), flag=str(gpu.place))
    except DoctorError as error:
        problems.add_error(error, gpu.place)
        return CardChoice(cards=())
    return CardChoice(cards=(card if size is None else with_memory(card, size),) * count)


def place_roles(
    settings: Settings, asked: Settings, problems: Problems, find_gpus: Callable[[], FoundGpus]
) -> tuple[Settings, CardChoice]:
    """Choose GPUs and fit the roles to them.

    GPUs that the settings name come first, then those that `find_gpus` finds, then the founding
    run's. Roles that `asked` (flags and plan file) leaves open follow the number of GPUs.
    """
    gpus = settings.get("placement.gpus")
    count = int(gpus.value) if gpus else None
    roles_asked = any(f"placement.{role}" in asked for role in ("targets", "drafters"))
    roles = _usual_count(settings)
    choice = named_cards(settings, problems)
    if choice is None:
        choice = _found_or_assumed(find_gpus(), count, roles, roles_asked)
    if not choice.cards:
        return settings, choice
    fitted, note = _fit_roles(settings, asked, len(choice.cards))
    return fitted, CardChoice(cards=choice.cards, notes=choice.notes + note)


def num_roles(settings: Settings) -> int:
    """Count the roles that the settings ask for."""
    return _role(settings, "targets") + _role(settings, "drafters")


def _usual_count(settings: Settings) -> int:
    return max(1, min(num_roles(settings), DEFAULT_COUNT))


def _found_or_assumed(found: FoundGpus, count: int | None, roles: int, roles_asked: bool) -> CardChoice:
    if not found.cards:
        choice = card_from_flags(gpu=None, gpu_memory=None, count=count or roles)
        card = choice.cards[0]
        note = (
            f"{found.reason}: {len(choice.cards)} x {format_bytes(card.memory_bytes)} ({card.name}) assumed; "
            "--gpus, --gpu and --gpu-memory name others"
        )
        return CardChoice(cards=choice.cards, notes=(note,))
    have = len(found.cards)
    wanted = count or (roles if have == 1 and not roles_asked else have)
    notes = tuple(_describe(found.cards[:wanted]))
    if wanted > have:
        gpus = "GPU was" if have == 1 else "GPUs were"
        notes += (f"{have} {gpus} found: the forecast is for {wanted} like the first, the added ones empty",)
    return CardChoice(cards=_resized(found.cards, wanted), notes=notes)


def _describe(cards: tuple[Card, ...]) -> list[str]:
    lines = []
    for index, card in enumerate(cards):
        free, total = format_bytes(card.usable_bytes), format_bytes(card.memory_bytes)
        others = f"; {'; '.join(card.other_processes)}" if card.other_processes else ""
        lines.append(f"GPU {index}: {card.name}, {free} of {total} free{others}")
    return lines


def _resized(cards: tuple[Card, ...], count: int) -> tuple[Card, ...]:
    spare = with_memory(cards[0], cards[0].memory_bytes)
    return cards[:count] + (spare,) * (count - len(cards))


def _fit_roles(settings: Settings, asked: Settings, count: int) -> tuple[Settings, tuple[str, ...]]:
    targets, drafters = _role(settings, "targets"), _role(settings, "drafters")
    named = {role for role in ("targets", "drafters") if f"placement.{role}" in asked}
    if targets + drafters == count:
        return settings, ()
    if count == 1 and "drafters" not in named and (targets == 1 or "targets" not in named):
        return _with_roles(settings, 1, 0), (ONE_GPU,)
    if "targets" in named:
        return settings, ()
    if "drafters" not in named:
        drafters = 1
    targets = max(count - drafters, 0)
    fitted = _with_roles(settings, targets, drafters)
    if targets + drafters > count:
        return fitted, ()
    roles = f"{plural(targets, 'target')} and {plural(drafters, 'drafter')}"
    return fitted, (f"{plural(count, 'GPU')}: {roles}; --targets and --drafters choose otherwise",)


def _with_roles(settings: Settings, targets: int, drafters: int) -> Settings:
    counts = {"placement.targets": targets, "placement.drafters": drafters}
    return settings | {
        path: Setting(value=count, place=Place(key="roles"))
        for path, count in counts.items()
        if path not in settings or settings[path].value != count
    }


def _role(settings: Settings, role: str) -> int:
    setting = settings.get(f"placement.{role}")
    value: Any = setting.value if setting else _DEFAULTS[f"num_{role}"]
    return int(value)
