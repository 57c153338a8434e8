"""Put settings together: later ones over earlier ones, then a checked RunPlan."""

import copy
import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dflash_doctor.errors import DoctorError
from dflash_doctor.intake.models import model_from_config, resolve_model
from dflash_doctor.intake.plan_checks import check_plan
from dflash_doctor.intake.plan_keys import KEYS, MODEL_REFUSED
from dflash_doctor.intake.settings import Place, Problems, Settings
from dflash_doctor.records.plan import Card, DraftSpec, LossSpec, ModelSpec, RunPlan

_MODEL_SOURCES = ("model.preset", "model.config", "model.id", "model.ref")


def merge(lower: Settings, upper: Settings) -> Settings:
    """Lay `upper` over `lower`.

    Another model drops all of the lower model, with its mask token; another kind of GPU drops the
    lower kind, size and count.
    """
    kept = dict(lower)
    if any(path in upper for path in _MODEL_SOURCES):
        kept = {path: value for path, value in kept.items() if not path.startswith("model.")}
        kept.pop("draft.mask_token_id", None)
    if any(path in upper for path in ("placement.gpu", "placement.gpu_memory", "placement.cards")):
        for path in ("placement.gpu", "placement.gpu_memory", "placement.cards"):
            kept.pop(path, None)
    return kept | upper


def build_plan(settings: Settings, problems: Problems, cards: tuple[Card, ...]) -> RunPlan | None:
    """Build a plan and note what is wrong with it; None where its model could not be read."""
    model = _model(settings, problems)
    plan_fields, draft_fields, loss_fields = _fields(settings)
    if model is None:
        return None
    plan = RunPlan(
        name=str(settings["name"].value) if "name" in settings else "run",
        model=model,
        draft=dataclasses.replace(DraftSpec(), **draft_fields),
        loss=dataclasses.replace(LossSpec(), **loss_fields),
        cards=cards,
        **plan_fields,
    )
    check_plan(plan, settings, problems)
    return plan


def _fields(settings: Settings) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:
    plan: dict[str, Any] = {}
    draft: dict[str, Any] = {}
    loss: dict[str, Any] = {}
    for key in KEYS:
        if key.path in settings:
            part, _, name = key.field.rpartition(".")
            {"": plan, "draft": draft, "loss": loss}[part][name] = settings[key.path].value
    return plan, draft, loss


def _model(settings: Settings, problems: Problems) -> ModelSpec | None:
    given = [path for path in _MODEL_SOURCES if path in settings]
    if not given:
        if MODEL_REFUSED in settings:
            return None
        problems.add("[model]", "no model is named", "write preset, config or id in [model], or pass --model")
        return None
    setting = settings[given[0]]
    if len(given) > 1:
        problems.add(settings[given[1]].place, f"a model is named twice, here and by {given[0]}")
        return None
    try:
        if isinstance(setting.value, Mapping):
            return _inline_model(settings, setting.place)
        folder = settings.get("model.folder")
        base = Path(str(folder.value)) if folder and given[0] == "model.config" else None
        return resolve_model(str(setting.value), flag=str(setting.place), base=base)
    except DoctorError as error:
        problems.add_error(error, setting.place)
        return None


def _inline_model(settings: Settings, place: Place) -> ModelSpec:
    config: dict[str, Any] = copy.deepcopy(dict(settings["model.config"].value))
    for path in settings["model.null_keys"].value if "model.null_keys" in settings else ():
        *holders, last = str(path).split(".")
        table = config
        for holder in holders:
            table = table.setdefault(holder, {})
            if not isinstance(table, dict):
                raise DoctorError(f"{settings['model.null_keys'].place}: {path} leads through a value")
        table[last] = None
    name = str(settings["model.name"].value) if "model.name" in settings else "model"
    origin = str(settings["model.origin"].value) if "model.origin" in settings else f"file {place.file}"
    spec = model_from_config(config, name=name, origin=origin, flag=str(place))
    return dataclasses.replace(spec, origin=origin)
