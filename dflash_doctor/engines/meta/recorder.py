"""Keep the books of a trace: births and deaths of storages, ops with what they read and write."""

import sys
import weakref
from collections.abc import Callable, Iterable, Sequence
from types import CodeType, FrameType
from typing import Any

import torch

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

DEEP_STACK_BYTES = 1 << 20
"""Storages of at least this size keep their Python stack, smaller ones one line."""
STACK_DEPTH = 8

LONG_LIVED = frozenset({"gradients", "optimizer_state", "workspace"})
"""What the first step makes and later ones use again."""

_HIDDEN_FOLDERS = (
    torch.__path__[0],
    __file__.rpartition("/")[0],
    "<",
)
_hidden: dict[str, bool] = {}


def is_hidden(filename: str) -> bool:
    """Say whether a file is torch's own or the engine's, not to be shown as a cause."""
    known = _hidden.get(filename)
    if known is None:
        known = _hidden[filename] = filename.startswith(_HIDDEN_FOLDERS) or "/contextlib.py" in filename
    return known


class Recorder:
    """Record one role's storages, ops and events in the order in which they happen."""

    def __init__(self) -> None:
        self.events: list[int] = []
        self.phases: list[tuple[str, int]] = []
        self.value_reads: dict[tuple[Site, bool, bool], tuple[int, int]] = {}
        self.untraced: dict[str, None] = {}
        self.module = ""
        self.phase = "load"
        self._storages: list[tuple[int, tuple[int, ...], str, Site, int]] = []
        self._category: list[Category] = []
        self._died: dict[int, int] = {}
        self._ops: list[tuple[Site, list[Read], list[int], list[int], int | None]] = []
        self._id_of: dict[int, int] = {}
        self._watch: dict[int, weakref.ref[torch.UntypedStorage]] = {}
        self._sites: dict[tuple[Any, ...], Site] = {}
        self._lines: dict[int, tuple[CodeType, dict[int, SourceLine] | None]] = {}
        self.on_death: Callable[[int], None] | None = None
        self._forward_of_node: dict[int, tuple[str, tuple[SourceLine, ...]]] = {}
        self.set_phase("load")

    # -- where we are ------------------------------------------------------------------------------

    def set_phase(self, name: str) -> None:
        """Begin a phase; ops and births from here on carry its name."""
        self.phase = name
        if not self.phases or self.phases[-1][0] != name:
            self.phases.append((name, len(self.events)))

    def current_phase(self) -> str:
        """Name the phase: the one that was set, or backward while autograd runs."""
        in_backward = torch._C._current_graph_task_id() >= 0
        if in_backward != (self.phases[-1][0] == "backward"):
            name = "backward" if in_backward else self.phase
            if self.phases[-1][0] != name:
                self.phases.append((name, len(self.events)))
        return "backward" if in_backward else self.phase

    def _stack(self, depth: int) -> tuple[SourceLine, ...]:
        """Collect up to `depth` lines of Python outside torch, innermost first."""
        frame: FrameType | None = sys._getframe(3)
        lines: list[SourceLine] = []
        while frame is not None and len(lines) < depth:
            code = frame.f_code
            of_code = self._lines.get(id(code))
            if of_code is None:
                of_code = self._lines[id(code)] = (code, None if is_hidden(code.co_filename) else {})
            if of_code[1] is not None:
                line = of_code[1].get(frame.f_lineno)
                if line is None:
                    line = SourceLine(file=code.co_filename, line=frame.f_lineno, function=code.co_name)
                    of_code[1][frame.f_lineno] = line
                lines.append(line)
            frame = frame.f_back
        return tuple(lines)

    def site(self, op: str, depth: int) -> Site:
        """Say where execution stands; in backward, the forward op that it belongs to."""
        phase = self.current_phase()
        module, stack = self.module, self._stack(depth)
        node = torch._C._current_autograd_node() if phase == "backward" else None
        if node is not None:
            forward = self._forward_of_node.get(node._sequence_nr())
            if forward is not None:
                module, stack = forward
        elif torch.is_grad_enabled():
            number = torch._C._autograd._get_sequence_nr() - 1
            known = self._forward_of_node.get(number)
            if known is None or len(known[1]) < len(stack):
                self._forward_of_node[number] = (module, stack)
        key = (module, op, phase, *map(id, stack))
        known_site = self._sites.get(key)
        if known_site is None:
            known_site = self._sites[key] = Site(module=module, op=op, phase=phase, stack=stack)
        return known_site

    # -- births and deaths -------------------------------------------------------------------------

    def id_of(self, tensor: torch.Tensor) -> int | None:
        """Give the id of a tensor's storage, None where it is not a device storage."""
        return self._id_of.get(tensor.untyped_storage()._cdata)

    def adopt(self, tensor: torch.Tensor, category: Category, site: Site) -> int:
        """Enter a tensor's storage in the books unless it is there already."""
        storage = tensor.untyped_storage()
        known = self._id_of.get(storage._cdata)
        if known is not None:
            return known
        new = self._enter(storage.nbytes(), tuple(tensor.shape), str(tensor.dtype)[6:], category, site)
        self._id_of[storage._cdata] = new
        self._watch[new] = weakref.ref(storage, self._death_of(new, storage._cdata))
        return new

    def _enter(
        self, num_bytes: int, shape: tuple[int, ...], dtype: str, category: Category, site: Site
    ) -> int:
        new = len(self._storages)
        born = -1 if self.phase == "load" else len(self._ops)
        self._storages.append((num_bytes, shape, dtype, site, born))
        self._category.append(category)
        self.events.append(new + 1)
        return new

    def _death_of(self, storage_id: int, cdata: int) -> Callable[[object], None]:
        def died(_: object) -> None:
            if self._id_of.get(cdata) == storage_id:
                del self._id_of[cdata]
                if self.on_death is not None:
                    self.on_death(cdata)
            self._watch.pop(storage_id, None)
            self.free(storage_id)

        return died

    def free(self, storage_id: int) -> None:
        """Enter the death of a storage."""
        self._died[storage_id] = len(self._ops) - 1
        self.events.append(-storage_id - 1)

    def temporary(self, num_bytes: int, dtype: str, site: Site, category: Category = "temporaries") -> int:
        """Enter an allocation that a kernel makes for itself; the caller frees it with `free`."""
        width = {"float32": 4, "int64": 8, "uint8": 1}.get(dtype, 2)
        return self._enter(num_bytes, (num_bytes // width,), dtype, category, site)

    def set_category(self, tensors: Iterable[torch.Tensor], category: Category) -> None:
        """Say what the storages of these tensors are, whatever they were taken for at birth."""
        for tensor in tensors:
            known = self.id_of(tensor)
            if known is not None:
                self._category[known] = category

    def category_of(self, tensor: torch.Tensor) -> Category | None:
        """Give the category of a tensor's storage, None where it is not a device storage."""
        known = self.id_of(tensor)
        return None if known is None else self._category[known]

    def name_parameters(self, module: torch.nn.Module) -> None:
        """Give parameters and buffers their own names as sites, and their categories."""
        named: list[tuple[str, torch.Tensor, Category]] = [
            *((name, tensor, "weights") for name, tensor in module.named_parameters()),
            *((name, tensor, "buffers") for name, tensor in module.named_buffers()),
        ]
        for name, tensor, category in named:
            known = self.id_of(tensor)
            if known is not None:
                self._category[known] = category
                size, shape, dtype, site, born = self._storages[known]
                site = Site(module=name, op="load", phase=site.phase, stack=())
                self._storages[known] = (size, shape, dtype, site, born)

    def alive(self) -> set[int]:
        """Give the ids of all storages that are alive."""
        return set(self._id_of.values())

    def are_long_lived(self, storages: Iterable[int]) -> bool:
        """Say whether all these storages are of a kind that lives through further steps."""
        return all(self._category[storage] in LONG_LIVED for storage in storages)

    # -- ops ---------------------------------------------------------------------------------------

    def op(
        self, site: Site, reads: list[Read], writes: list[int], views: list[int], index_elements: int | None
    ) -> None:
        """Enter one op."""
        self._ops.append((site, reads, writes, views, index_elements))

    def value_read(self, site: Site, known: bool, floating: bool = False) -> None:
        """Enter a value that the host read back from the device."""
        count, event = self.value_reads.get((site, known, floating), (0, len(self.events)))
        self.value_reads[(site, known, floating)] = (count + 1, event)

    # -- the record --------------------------------------------------------------------------------

    def finish(
        self, *, role: str, steady: tuple[int, int] | None, vocab_size: int | None, seconds: float
    ) -> AllocationTrace:
        """Close the books; births and deaths after this call are not entered."""
        died = dict(self._died)
        self._watch.clear()
        storages = tuple(
            Storage(
                id=i, bytes=size, shape=shape, dtype=dtype, category=category, site=site, born_at=born,
                died_at=died.get(i),
            )
            for i, ((size, shape, dtype, site, born), category) in enumerate(
                zip(self._storages, self._category, strict=True)
            )
        )  # fmt: skip
        ops = tuple(
            Op(index=i, site=site, reads=tuple(reads), writes=tuple(writes), views=tuple(views),
               index_elements=index)
            for i, (site, reads, writes, views, index) in enumerate(self._ops)
        )  # fmt: skip
        return AllocationTrace(
            origin="meta",
            role=role,
            storages=storages,
            ops=ops,
            events=tuple(self.events),
            phases=_phase_records(self.phases, len(self.events)),
            steady=steady,
            value_reads=tuple(
                ValueRead(site=site, known=known, floating=floating, count=count, event=event)
                for (site, known, floating), (count, event) in self.value_reads.items()
            ),
            untraced_ops=tuple(self.untraced),
            vocab_size=vocab_size,
            seconds=seconds,
            versions=_versions(),
        )


def _versions() -> dict[str, str]:
    """Name the libraries whose code ran."""
    names = ("torch", "transformers")
    return {name: str(sys.modules[name].__version__) for name in names if name in sys.modules}


def _phase_records(starts: Sequence[tuple[str, int]], stop: int) -> tuple[Phase, ...]:
    ends = [start for _, start in starts[1:]] + [stop]
    return tuple(
        Phase(name=name, start=start, stop=end)
        for (name, start), end in zip(starts, ends, strict=True)
        if end > start
    )
