"""Read the presets that ship with the package."""

import json
import tomllib
from functools import cache
from importlib import resources
from typing import Any

from dflash_doctor.errors import DoctorError
from dflash_doctor.intake.settings import did_you_mean, one_of


def _names(folder: str, suffix: str) -> tuple[str, ...]:
    files = resources.files("dflash_doctor.presets").joinpath(folder).iterdir()
    return tuple(sorted(file.name.removesuffix(suffix) for file in files if file.name.endswith(suffix)))


@cache
def model_names() -> tuple[str, ...]:
    """List the models whose dimensions are known."""
    return _names("models", ".json")


@cache
def plan_names() -> tuple[str, ...]:
    """List the plans that ship with the package."""
    return _names("plans", ".toml")


@cache
def model_preset(name: str) -> dict[str, Any]:
    """Read a model's dimensions: `config`, `source` and, where it is known, `mask_token_id`."""
    file = resources.files("dflash_doctor.presets").joinpath("models", f"{name}.json")
    entry: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    return entry


def plan_preset_text(name: str, *, flag: str = "--preset") -> str:
    """Read a plan's TOML text; raise DoctorError naming the flag where there is no such plan."""
    if name not in plan_names():
        raise DoctorError(
            f"{flag}: there is no preset {name!r}{did_you_mean(name, plan_names())}",
            hint=f"{flag} is {one_of(plan_names())}",
        )
    return (
        resources.files("dflash_doctor.presets").joinpath("plans", f"{name}.toml").read_text(encoding="utf-8")
    )


@cache
def card_table() -> dict[str, Any]:
    """Read the table of GPUs with its bands."""
    text = resources.files("dflash_doctor.presets").joinpath("cards.toml").read_text(encoding="utf-8")
    return tomllib.loads(text)
