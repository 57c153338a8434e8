"""Build small allocation traces by hand."""

from dflash_doctor.records.reads import numel
from dflash_doctor.records.trace import (
    AllocationTrace,
    Category,
    Op,
    Phase,
    Read,
    Site,
    SourceLine,
    Storage,
    ValueRead,
)

WIDTHS = {"float32": 4, "bfloat16": 2, "float16": 2, "int64": 8, "bool": 1}

View = tuple[int, tuple[int, ...]]
"""A storage and the shape of the view of it that an op takes."""


class TraceBuilder:
    """Record ops one by one; `build` closes the trace."""

    def __init__(self, role: str = "target", vocab_size: int | None = 1_000) -> None:
        self.role = role
        self.vocab_size = vocab_size
        self.storages: list[Storage] = []
        self.ops: list[Op] = []
        self.events: list[int] = []
        self.died: dict[int, int] = {}
        self.phases: list[tuple[str, int]] = [("forward", 0)]
        self.untraced: list[str] = []
        self.value_reads: list[ValueRead] = []

    def phase(self, name: str) -> None:
        """Begin a phase."""
        self.phases.append((name, len(self.events)))

    def tensor(
        self, *shape: int, dtype: str = "bfloat16", category: Category = "weights", born_at: int = -1,
        site: Site | None = None,
    ) -> int:  # fmt: skip
        """Enter a storage; without `born_at` it was there before the first op."""
        new = len(self.storages)
        self.storages.append(
            Storage(
                id=new, bytes=numel(shape) * WIDTHS[dtype], shape=shape, dtype=dtype, category=category,
                site=site or Site(module="", op="", phase="load"), born_at=born_at, died_at=None,
            )
        )  # fmt: skip
        self.events.append(new + 1)
        return new

    def op(
        self, name: str, *inputs: int | View, out: tuple[int, ...] | None = None, dtype: str = "bfloat16",
        into: int | None = None, module: str = "", line: int = 1, index: int | None = None,
    ) -> int:  # fmt: skip
        """Enter `aten.<name>`, which makes a storage of shape `out` or writes `into` one; give its id."""
        where = SourceLine(file="model.py", line=line, function="forward")
        site = Site(module=module, op=f"aten.{name}", phase=self.phases[-1][0], stack=(where,))
        at = len(self.ops)
        written = into if into is not None else -1
        if out is not None:
            written = self.tensor(*out, dtype=dtype, category="activations", born_at=at, site=site)
        reads = tuple(self._read(value, position) for position, value in enumerate(inputs))
        writes = (written,) if written >= 0 else ()
        self.ops.append(Op(index=at, site=site, reads=reads, writes=writes, index_elements=index))
        return written

    def view(self, storage: int) -> None:
        """Enter a view of a storage."""
        site = Site(module="", op="aten.view.default", phase=self.phases[-1][0])
        self.ops.append(Op(index=len(self.ops), site=site, reads=(), writes=(), views=(storage,)))

    def free(self, *storages: int) -> None:
        """Free storages after the last op."""
        for storage in storages:
            self.died[storage] = len(self.ops) - 1
            self.events.append(-storage - 1)

    def value_read(self, line: int, *, known: bool, count: int = 1) -> None:
        """Enter a value that the host read back."""
        where = SourceLine(file="model.py", line=line, function="forward")
        site = Site(module="", op="aten._local_scalar_dense.default", phase="forward", stack=(where,))
        self.value_reads.append(ValueRead(site=site, known=known, count=count, event=len(self.events)))

    def build(self) -> AllocationTrace:
        """Close the trace."""
        stops = [start for _, start in self.phases[1:]] + [len(self.events)]
        return AllocationTrace(
            origin="meta",
            role=self.role,
            storages=tuple(_with_death(s, self.died.get(s.id)) for s in self.storages),
            ops=tuple(self.ops),
            events=tuple(self.events),
            phases=tuple(
                Phase(name=name, start=start, stop=stop)
                for (name, start), stop in zip(self.phases, stops, strict=True)
            ),
            steady=None,
            value_reads=tuple(self.value_reads),
            untraced_ops=tuple(self.untraced),
            vocab_size=self.vocab_size,
        )

    def _read(self, value: int | View, position: int) -> Read:
        storage, shape = value if isinstance(value, tuple) else (value, self.storages[value].shape)
        return Read(storage=storage, elements=numel(shape), shape=shape, argument=position)


def _with_death(storage: Storage, died_at: int | None) -> Storage:
    return Storage(
        id=storage.id, bytes=storage.bytes, shape=storage.shape, dtype=storage.dtype,
        category=storage.category, site=storage.site, born_at=storage.born_at, died_at=died_at,
    )  # fmt: skip
