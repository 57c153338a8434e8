"""GPUs by name, from the card table, or by their memory alone."""

import dataclasses
from dataclasses import dataclass
from typing import Any

from dflash_doctor.errors import DoctorError
from dflash_doctor.intake.presets import card_table
from dflash_doctor.intake.settings import did_you_mean, one_of
from dflash_doctor.records.plan import ByteBand, Card
from dflash_doctor.units import format_bytes, parse_bytes

DEFAULT_CARD = "rtx-pro-6000"
DEFAULT_COUNT = 8
# A card is guessed among those that have bfloat16.
GUESSED_CAPABILITY = (8, 0)
# Two cards of one kind report totals that differ with the driver, by up to 1.3 % in the table's sources.
SAME_MEMORY = 0.02


@dataclass(frozen=True, slots=True, kw_only=True)
class CardChoice:
    """The GPUs of a plan, and what must be said aloud about how they were chosen."""

    cards: tuple[Card, ...]
    notes: tuple[str, ...] = ()


def card_names() -> tuple[str, ...]:
    """List the cards of the table."""
    return tuple(card_table()["cards"])


def card_named(name: str, *, flag: str = "--gpu") -> Card:
    """Look up a card; raise DoctorError naming `flag` and the nearest names."""
    key = name.strip().lower().replace(" ", "-").replace("_", "-").removeprefix("nvidia-")
    known = card_names()
    if key not in known:
        alike = [card for card in known if card.startswith(f"{key}-")]
        meant = f"; did you mean {' or '.join(alike)}?" if alike else did_you_mean(key, known)
        raise DoctorError(
            f"{flag}: the card table has no {name!r}{meant}",
            hint=f"{flag} is {one_of(known)}; for another card give --gpu-memory alone",
        )
    entry = card_table()["cards"][key]
    memory = parse_bytes(f"{entry['memory_gib']}GiB", flag=flag)
    major, minor = entry["compute_capability"]
    return Card(
        name=key,
        memory_bytes=memory,
        usable_bytes=memory,
        compute_capability=(major, minor),
        num_multiprocessors=entry["multiprocessors"],
        context=_band("context", entry["context"]),
        nccl_per_peer=_band("nccl", entry["nccl"]),
        source=f"card table: {entry['source']}",
    )


def kind_of(device_name: str) -> str | None:
    """Match the name that a driver gives to a card of the table; None where none fits."""
    if device_name in card_names():
        return device_name
    upper = device_name.upper().replace("-", " ")
    words = set(upper.split())
    for key, entry in card_table()["cards"].items():
        wanted = [word.upper() for word in entry["nvml"]]
        if all(word in words if " " not in word else word in upper for word in wanted) and not any(
            word.upper() in words for word in entry.get("without", ())
        ):
            return str(key)
    return None


def card_from_flags(*, gpu: str | None, gpu_memory: str | int | None, count: int) -> CardChoice:
    """Choose `count` cards by name, by memory, or both; without either, the founding run's.

    A card given by its memory alone is taken for the one of the table that is nearest, and the note
    says so. Raises DoctorError naming --gpu or --gpu-memory.
    """
    if gpu is not None:
        card = card_named(gpu)
        if gpu_memory is not None:
            card = with_memory(card, parse_bytes(gpu_memory, flag="--gpu-memory"))
        return CardChoice(cards=(card,) * count)
    if gpu_memory is None:
        card = card_named(DEFAULT_CARD)
        note = f"{count} x {format_bytes(card.memory_bytes)} ({card.name}) assumed"
        return CardChoice(cards=(card,) * count, notes=(note,))
    memory = parse_bytes(gpu_memory, flag="--gpu-memory")
    cards = (card for card in map(card_named, card_names()) if card.compute_capability >= GUESSED_CAPABILITY)
    nearest = min(cards, key=lambda card: abs(card.memory_bytes - memory))
    card, kind = with_memory(nearest, memory), nearest.name
    note = f"GPUs of {format_bytes(memory)} are taken for {kind}, the nearest known; --gpu names another"
    return CardChoice(cards=(card,) * count, notes=(note,))


def with_memory(card: Card, memory: int) -> Card:
    """Give a card another size of memory, all of it usable."""
    return dataclasses.replace(card, memory_bytes=memory, usable_bytes=memory, other_processes=())


def identity_of(card: Card) -> tuple[str, int]:
    """Name a card by what decides a forecast: its kind and total memory, however they were found.

    Within 2 % of the table the table's memory counts, since drivers differ by that much.
    """
    kind = kind_of(card.name)
    if kind is not None:
        usual = card_named(kind).memory_bytes
        if abs(card.memory_bytes - usual) <= SAME_MEMORY * usual:
            return kind, usual
    return kind or card.name, card.memory_bytes


def _band(table: str, name: str) -> ByteBand:
    entry: dict[str, Any] = card_table()[table][name]
    return ByteBand(
        low=entry["low_mib"] * 2**20,
        likely=entry["likely_mib"] * 2**20,
        high=entry["high_mib"] * 2**20,
        basis=entry["basis"],
    )
