"""Write a plan as TOML that reads back to the same plan."""

import dataclasses
import os
import tempfile
from collections.abc import Mapping
from itertools import groupby
from pathlib import Path
from typing import Any

import tomlkit
from tomlkit.exceptions import TOMLKitError
from tomlkit.items import AoT, Table

from dflash_doctor.errors import DoctorError
from dflash_doctor.intake.cards import card_named, card_names, with_memory
from dflash_doctor.intake.plan_keys import KEYS, TRAINER_TABLES
from dflash_doctor.intake.presets import model_names, model_preset
from dflash_doctor.records.plan import ByteBand, Card, ModelSpec, RunPlan
from dflash_doctor.units import parse_bytes


def dump_plan(plan: RunPlan) -> str:
    """Write every field of a plan, with short comments; what is None is left out."""
    return tomlkit.dumps(_document(plan))


def write_plan_file(plan: RunPlan, path: Path) -> None:
    """Write a plan file in one piece; the trainer's tables of a file that is there are kept.

    Raises DoctorError naming --fix-to where it cannot be written.
    """
    document = _document(plan)
    try:
        for name, table in _trainer_tables(path).items():
            document[name] = table
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
        try:
            with os.fdopen(handle, "w", encoding="utf-8") as file:
                file.write(tomlkit.dumps(document))
            Path(temporary).chmod(0o644)
            Path(temporary).replace(path)
        except BaseException:
            Path(temporary).unlink(missing_ok=True)
            raise
    except OSError as error:
        raise DoctorError(f"--fix-to: {path} cannot be written: {error.strerror or error}") from None


def _trainer_tables(path: Path) -> dict[str, Any]:
    if not path.is_file():
        return {}
    try:
        found = tomlkit.parse(path.read_text(encoding="utf-8-sig"))
    except (TOMLKitError, UnicodeDecodeError):
        raise DoctorError(f"--fix-to: {path} is there and is no plan file; it is left as it is") from None
    return {name: table for name, table in found.items() if name in TRAINER_TABLES}


def _document(plan: RunPlan) -> tomlkit.TOMLDocument:
    document = tomlkit.document()
    document.add("name", tomlkit.item(plan.name))
    document.add("model", _model(plan.model))
    tables: dict[str, Table] = {}
    for key in KEYS:
        value = _field(plan, key.field)
        name, _, entry = key.path.partition(".")
        table = tables.setdefault(name, tomlkit.table())
        if value is None:
            continue
        item = tomlkit.item(list(value) if isinstance(value, tuple) else value)
        if key.comment:
            item.comment(key.comment)
        table.add(entry, item)
    _add_cards(tables["placement"], plan.cards)
    for name, table in tables.items():
        document.add(name, table)
    return document


def _field(plan: RunPlan, path: str) -> Any:
    value: Any = plan
    for name in path.split("."):
        value = getattr(value, name)
    return value


def _model(model: ModelSpec) -> Table:
    table = tomlkit.table()
    if model.name in model_names() and model.origin == "preset":
        preset = model_preset(model.name)["config"]
        if preset == dict(model.config):
            table.add("preset", model.name)
            return table
    table.add("name", model.name)
    table.add("origin", model.origin)
    nulls: list[str] = []
    config = _without_nulls(model.config, "", nulls)
    if nulls:
        item = tomlkit.item(nulls)
        item.comment("keys of the configuration that are null")
        table.add("null_keys", item)
    table.add("config", tomlkit.item(config))
    return table


def _without_nulls(config: Mapping[str, Any], prefix: str, nulls: list[str]) -> dict[str, Any]:
    """Copy a configuration without its nulls, which TOML lacks, and note their paths."""
    kept: dict[str, Any] = {}
    for key, value in config.items():
        if value is None:
            nulls.append(f"{prefix}{key}")
        elif isinstance(value, Mapping):
            kept[key] = _without_nulls(value, f"{prefix}{key}.", nulls)
        else:
            kept[key] = value
    return kept


def _add_cards(table: Table, cards: tuple[Card, ...]) -> None:
    if not cards:
        return
    kind = cards[0].name
    alike = len(set(map(_frozen, cards))) == 1
    if alike and kind in card_names() and cards[0] == with_memory(card_named(kind), cards[0].memory_bytes):
        table.add("gpus", len(cards))
        table.add("gpu", kind)
        if cards[0] != card_named(kind):
            table.add("gpu_memory", _size(cards[0].memory_bytes))
        return
    array = AoT([])
    for _, group in groupby(cards, key=_frozen):
        same = list(group)
        array.append(_card(same[0], len(same)))
    table.add("cards", array)


def _card(card: Card, count: int) -> Table:
    table = tomlkit.table()
    table.update(
        {
            "name": card.name,
            "count": count,
            "memory": _size(card.memory_bytes),
            "usable": _size(card.usable_bytes),
            "compute_capability": list(card.compute_capability),
            "multiprocessors": card.num_multiprocessors,
            "source": card.source,
        }
    )
    if card.other_processes:
        table.add("other_processes", list(card.other_processes))
    for name, band in (("context", card.context), ("nccl_per_peer", card.nccl_per_peer)):
        table.add(name, _band(band))
    return table


def _band(band: ByteBand) -> Any:
    inline = tomlkit.inline_table()
    inline.update({"low": band.low, "likely": band.likely, "high": band.high, "basis": band.basis})
    return inline


def _frozen(card: Card) -> str:
    return repr(dataclasses.astuple(card))


def _size(num_bytes: int) -> int | str:
    """Write GiB where two decimals say it exactly, else plain bytes."""
    text = f"{num_bytes / 2**30:.2f}GiB"
    return text if parse_bytes(text, flag="", minimum=0) == num_bytes else num_bytes
