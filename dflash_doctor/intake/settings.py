"""Settings with the place that each comes from, and the mistakes found in them."""

import difflib
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from dflash_doctor.errors import DoctorError

MOST_SHOWN = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where a setting was written: a flag, or a key on a line of a plan file or preset."""

    key: str
    file: str | None = None
    line: int | None = None

    def __str__(self) -> str:
        if self.file is None:
            return self.key
        position = f"{self.file}:{self.line}" if self.line else self.file
        return f"{position}: {self.key}" if self.key else position


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """A value as it was read, already converted, and its place."""

    value: Any
    place: Place


Settings = dict[str, Setting]


@dataclass(slots=True)
class Problems:
    """Collect mistakes, so that all of them are shown at once."""

    texts: list[tuple[int, str]] = field(default_factory=list)
    hints: list[str] = field(default_factory=list)

    def add(self, place: Place | str, message: str, hint: str | None = None) -> None:
        """Note one mistake at a place."""
        line = place.line or 0 if isinstance(place, Place) else 0
        self._note(line, f"{place}: {message}", hint)

    def add_error(self, error: DoctorError, place: Place) -> None:
        """Note an error that already names its place."""
        self._note(place.line or 0, error.message, error.hint)

    def _note(self, line: int, text: str, hint: str | None) -> None:
        self.texts.append((line, text))
        if hint and hint not in self.hints:
            self.hints.append(hint)

    def raise_if_any(self, subject: str = "the plan") -> None:
        """Raise one DoctorError with every mistake, in the order of their lines."""
        if not self.texts:
            return
        texts = [text for _, text in sorted(self.texts, key=lambda entry: entry[0])]
        hint = "\n".join(self.hints) or None
        if len(texts) == 1:
            raise DoctorError(texts[0], hint=hint)
        listed = "\n".join(f"  {text}" for text in texts[:MOST_SHOWN])
        if len(texts) > MOST_SHOWN:
            listed += f"\n  and {len(texts) - MOST_SHOWN} more"
        raise DoctorError(f"{subject} has {len(texts)} mistakes:\n{listed}", hint=hint)


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """Suggest the nearest known word, as the end of a sentence; empty where none is near."""
    nearest = difflib.get_close_matches(word.lower(), sorted(known), n=1, cutoff=0.6)
    return f"; did you mean {nearest[0]!r}?" if nearest else ""


def plural(number: int, noun: str) -> str:
    """Count things: 1 target, 7 targets."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def one_of(words: Iterable[str]) -> str:
    """List the words that are allowed."""
    return "one of " + ", ".join(words)
