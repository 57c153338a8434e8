"""What an engine saw: every storage's life, every op's readers, phase and source line."""

from dataclasses import dataclass, field
from typing import Literal

Origin = Literal["meta", "null", "cuda", "snapshot"]
Category = Literal[
    "weights",
    "buffers",
    "tables",
    "master_weights",
    "gradients",
    "optimizer_state",
    "inputs",
    "features",
    "activations",
    "temporaries",
    "workspace",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceLine:
    """One line of Python."""

    file: str
    line: int
    function: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Site:
    """Where something happens: module path, op, phase, and the Python stack, innermost first.

    `stack` leaves out frames of torch itself; its first entry is the line to show.
    """

    module: str
    op: str
    phase: str
    stack: tuple[SourceLine, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Storage:
    """One allocation, from birth to death.

    `bytes` is what was asked for, before the allocator's rounding. `shape` and `dtype` are those of
    the tensor that it was made for.
    """

    id: int
    bytes: int
    shape: tuple[int, ...]
    dtype: str
    category: Category
    site: Site
    born_at: int
    """Index of the op that made it; -1: it was there before the first op."""
    died_at: int | None
    """Index of the op after which it was freed; None: alive at the end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Read:
    """One input of an op: which storage it reads, and at most how many of its elements."""

    storage: int
    elements: int
    shape: tuple[int, ...]
    argument: int
    """Position of the tensor among the op's tensor arguments."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Op:
    """One operation that touched memory; `writes` are the storages of its outputs."""

    index: int
    site: Site
    reads: tuple[Read, ...]
    writes: tuple[int, ...]
    views: tuple[int, ...] = ()
    """Storages that the op only gave another shape to, without reading them."""
    index_elements: int | None = None
    """For an op that picks rows (index, gather, embedding): the number of elements in its index."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Phase:
    """A named stretch of the event list, [start, stop)."""

    name: str
    start: int
    stop: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ValueRead:
    """A value that the host read back from the device, and whether the engine knew it."""

    site: Site
    known: bool
    count: int
    event: int
    """Index into the event list of the first such read."""
    floating: bool = False
    """A single floating-point number, as a loss or a gradient norm is: it decides no shape."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AllocationTrace:
    """One role's memory over loading and steps.

    `events` holds `+(id + 1)` for a birth and `-(id + 1)` for a death, in order. `steady` marks the
    stretch of events that repeats at every further step.
    """

    origin: Origin
    role: str
    storages: tuple[Storage, ...]
    ops: tuple[Op, ...]
    events: tuple[int, ...]
    phases: tuple[Phase, ...]
    steady: tuple[int, int] | None
    value_reads: tuple[ValueRead, ...] = ()
    untraced_ops: tuple[str, ...] = ()
    """Ops whose inner allocations the engine had no model for."""
    vocab_size: int | None = None
    seconds: float = 0.0
    versions: dict[str, str] = field(default_factory=dict)
