"""Who read what: storages that nobody read, and storages of which only some rows were read."""

from dataclasses import dataclass
from functools import lru_cache
from math import prod
from typing import Literal

from dflash_doctor.records.trace import Category, Site

StepKind = Literal["computed", "moved", "picked", "read"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Unread:
    """A storage that no op took as an input, with the number of storages that its site made so.

    `storage`, `bytes` and `shape` are those of the largest one.
    """

    storage: int
    bytes: int
    shape: tuple[int, ...]
    dtype: str
    category: Category
    site: Site
    count: int
    alive_at_end: bool
    """Still held when the trace ends, so that a later reader cannot be excluded."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChainStep:
    """One op that the data passed: it made them, moved them, picked rows of them or read a part.

    `storage`, `bytes` and `shape` are those of the op's output; None, 0 and () where it made none.
    """

    kind: StepKind
    site: Site
    storage: int | None
    bytes: int
    shape: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class PartlyRead:
    """A storage of which only some rows were ever read, directly or through copies.

    `rows_read` is an upper bound; 0 where the data was only copied and no copy was read. `chain`
    begins with the op that computed the storage.
    """

    storage: int
    bytes: int
    shape: tuple[int, ...]
    dtype: str
    category: Category
    site: Site
    rows_total: int
    rows_read: int
    share: float
    """Share of the elements that were read, at most 1."""
    chain: tuple[ChainStep, ...]
    count: int
    """How many storages of this site were read in part only."""


@lru_cache(maxsize=4_096)
def base_name(op: str) -> str:
    """Reduce an op's name to its bare function: `aten.roll.default` is `roll`."""
    parts = op.split(".")
    return parts[1] if len(parts) > 1 else parts[0]


def numel(shape: tuple[int, ...]) -> int:
    """Count the elements of a shape."""
    return prod(shape)
