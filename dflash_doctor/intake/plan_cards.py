"""The table [[placement.cards]]: GPUs that no single name and size describes."""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

from dflash_doctor.errors import DoctorError
from dflash_doctor.intake.cards import DEFAULT_CARD, card_named, kind_of
from dflash_doctor.intake.plan_keys import BAND_KEYS, CARD_KEYS, MAX_GPUS
from dflash_doctor.intake.settings import Place, did_you_mean
from dflash_doctor.records.plan import ByteBand, Card
from dflash_doctor.units import parse_bytes, parse_count


def read_cards(value: object, place: Callable[[str], Place]) -> tuple[Card, ...]:
    """Read the array of tables; `place` finds the line of a key in it. Raises DoctorError."""
    if not isinstance(value, list) or not all(isinstance(entry, dict) for entry in value):
        raise DoctorError(f"{place('')}: it is an array of tables: write [[placement.cards]]")
    cards: list[Card] = []
    for index, entry in enumerate(value):
        where = str(place(f"{index}.count"))
        count = parse_count(entry.get("count", 1), flag=where, maximum=MAX_GPUS - len(cards), is_size=False)
        cards.extend([_read_card(entry, _inside(place, str(index)))] * count)
    return tuple(cards)


def _read_card(entry: Mapping[str, Any], place: Callable[[str], Place]) -> Card:
    _refuse_unknown(entry, CARD_KEYS, place)
    name = _typed(entry, "name", str, place)
    if name is None:
        raise DoctorError(f"{place('name')}: a card needs a name")
    kind = kind_of(name)
    card = dataclasses.replace(card_named(kind or DEFAULT_CARD), name=name, source="the plan")
    memory = entry.get("memory")
    if memory is not None:
        size = parse_bytes(memory, flag=str(place("memory")))
        card = dataclasses.replace(card, memory_bytes=size, usable_bytes=size)
    elif kind is None:
        raise DoctorError(f"{place('memory')}: a card that is not in the card table needs its memory")
    if "usable" in entry:
        card = dataclasses.replace(card, usable_bytes=parse_bytes(entry["usable"], flag=str(place("usable"))))
    return _read_details(card, entry, place)


def _read_details(card: Card, entry: Mapping[str, Any], place: Callable[[str], Place]) -> Card:
    changes: dict[str, Any] = {}
    capability = _typed(entry, "compute_capability", list, place)
    if capability is not None:
        if len(capability) != 2 or not all(isinstance(part, int) for part in capability):
            raise DoctorError(
                f"{place('compute_capability')}: two whole numbers are expected, such as [9, 0]"
            )
        changes["compute_capability"] = tuple(capability)
    if "multiprocessors" in entry:
        flag = str(place("multiprocessors"))
        changes["num_multiprocessors"] = parse_count(entry["multiprocessors"], flag=flag)
    for key in ("context", "nccl_per_peer"):
        band = _typed(entry, key, dict, place)
        if band is not None:
            changes[key] = _read_band(band, _inside(place, key))
    source = _typed(entry, "source", str, place)
    if source is not None:
        changes["source"] = source
    others = _typed(entry, "other_processes", list, place)
    if others is not None:
        changes["other_processes"] = tuple(str(line) for line in others)
    return dataclasses.replace(card, **changes)


def _read_band(entry: Mapping[str, Any], place: Callable[[str], Place]) -> ByteBand:
    _refuse_unknown(entry, BAND_KEYS, place)
    sizes = {}
    for key in ("low", "likely", "high"):
        if key not in entry:
            raise DoctorError(f"{place(key)}: a band needs low, likely and high")
        sizes[key] = parse_bytes(entry[key], flag=str(place(key)), minimum=0)
    return ByteBand(**sizes, basis=_typed(entry, "basis", str, place) or "the plan")


def _inside(place: Callable[[str], Place], outer: str) -> Callable[[str], Place]:
    return lambda key: place(f"{outer}.{key}")


def _typed(entry: Mapping[str, Any], key: str, kind: type[Any], place: Callable[[str], Place]) -> Any:
    value = entry.get(key)
    if value is not None and not isinstance(value, kind):
        names: dict[type[Any], str] = {str: "text", list: "a list", dict: "a table"}
        raise DoctorError(f"{place(key)}: {names[kind]} is expected, not {value!r}")
    return value


def _refuse_unknown(entry: Mapping[str, Any], known: tuple[str, ...], place: Callable[[str], Place]) -> None:
    for key in entry:
        if key not in known:
            raise DoctorError(
                f"{place(key)}: it is not known{did_you_mean(key, known)}",
                hint=f"the keys are {', '.join(known)}",
            )
