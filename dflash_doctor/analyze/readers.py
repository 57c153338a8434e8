"""Prove who read what: storages that no op read, and storages of which only some rows were read.

Both answers come from one walk over the ops each, so a trace of 200,000 ops takes a second or so.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import TypeVar

from dflash_doctor.records.reads import ChainStep, PartlyRead, StepKind, Unread, base_name, numel
from dflash_doctor.records.trace import AllocationTrace, Op, Read, Site, Storage

DEFAULT_MIN_BYTES = 64 * 2**20
CHAIN_LENGTH = 12
"""Steps that are kept of a chain."""

OVERWRITES = frozenset(
    {"copy_", "fill_", "zero_", "normal_", "uniform_", "random_", "_foreach_copy_", "_foreach_zero_"}
)
"""Ops that replace their first argument without looking at it."""

PICKS = frozenset({"index", "_unsafe_index", "index_select", "gather", "take", "take_along_dim", "embedding"})
"""Ops that read those rows or elements of their first argument that an index names."""

MOVES = frozenset(
    {
        "roll", "clone", "contiguous", "copy", "copy_", "_to_copy", "to", "flip", "rot90", "cat", "concat",
        "stack", "constant_pad_nd", "pad", "repeat", "permute_copy", "transpose_copy", "t_copy", "view_copy",
        "expand_copy", "slice_copy", "select_copy", "squeeze_copy", "unsqueeze_copy", "alias_copy",
        "detach_copy", "split_copy", "split_with_sizes_copy", "reshape", "_reshape_copy", "lift_fresh_copy",
        "add", "sub", "mul", "div", "neg", "tanh", "add_", "sub_", "mul_", "div_", "neg_", "tanh_",
    }
)  # fmt: skip
"""Ops each element of whose output comes from one element of each input: movement, casts, scaling."""

Found = TypeVar("Found", Unread, PartlyRead)


def find_unread(trace: AllocationTrace, min_bytes: int = DEFAULT_MIN_BYTES) -> tuple[Unread, ...]:
    """List the outputs of ops that no op ever read, one per site, largest first.

    A view is not a read. An output that is alive at the end counts only where its site made no other.
    """
    if not trace.ops:
        return ()
    read = {r.storage for op in trace.ops for r in op.reads if not _is_overwritten(op, r)}
    written = {storage for op in trace.ops for storage in op.writes}
    finished = {
        _key(s.site) for s in trace.storages if s.id in written and (s.id in read or s.died_at is not None)
    }
    found = [
        Unread(
            storage=s.id, bytes=s.bytes, shape=s.shape, dtype=s.dtype, category=s.category, site=s.site,
            count=1, alive_at_end=s.died_at is None,
        )
        for s in trace.storages
        if s.bytes >= min_bytes and s.born_at >= 0 and s.id in written and s.id not in read
        and (s.died_at is not None or _key(s.site) not in finished)
    ]  # fmt: skip
    return _one_per_site(found, weigh=lambda f: f.bytes)


def find_partly_read(trace: AllocationTrace, min_bytes: int = DEFAULT_MIN_BYTES) -> tuple[PartlyRead, ...]:
    """List the storages of which at least `min_bytes` were computed but never read, one per site.

    Data is followed through movement, casts and scaling until an op picks rows or reads a part; any
    other reader reads everything. The first storage of such a chain is the one that is listed.
    """
    storages = {s.id: s for s in trace.storages}
    demand = _demand(trace, storages)
    readers, sources = _links(trace, storages)

    def wasted(storage: Storage) -> int:
        total = numel(storage.shape)
        if not total or storage.born_at < 0 or storage.died_at is None or storage.id not in readers:
            return 0
        return storage.bytes * (total - demand.get(storage.id, 0)) // total

    found = []
    for storage in trace.storages:
        if storage.bytes < min_bytes or wasted(storage) < min_bytes:
            continue
        if not any(wasted(storages[s]) >= min_bytes for s in sources.get(storage.id, ())):
            found.append(_partly_read(storage, demand.get(storage.id, 0)))
    kept = _one_per_site(found, weigh=lambda f: round(f.bytes * (1 - f.share)))
    return tuple(replace(f, chain=_chain(storages[f.storage], readers, storages, demand)) for f in kept)


def _demand(trace: AllocationTrace, storages: Mapping[int, Storage]) -> dict[int, int]:
    """Bound the elements of each storage that any op reads, directly or through copies.

    Walking backwards, all readers of an op's outputs are known before the op itself is looked at.
    What is alive at the end may be read by somebody later: all of it is demanded.
    """
    demand = {s.id: numel(s.shape) for s in trace.storages if s.died_at is None}
    for op in reversed(trace.ops):
        if not op.reads:
            continue
        wanted = sum(demand.get(w, 0) for w in op.writes)
        for read in op.reads:
            storage = storages.get(read.storage)
            if storage is None or _is_overwritten(op, read) or _is_in_place(op, read):
                continue
            taken = _taken(op, read, storage, wanted, storages)
            if taken:
                demand[storage.id] = min(numel(storage.shape), demand.get(storage.id, 0) + taken)
    return demand


def _taken(op: Op, read: Read, storage: Storage, wanted: int, storages: Mapping[int, Storage]) -> int:
    """Bound the elements of `storage` that `op` needs, given how many of its outputs are wanted."""
    name = base_name(op.site.op)
    reachable = _rows_of_view(read, storage)
    if name in MOVES:
        return min(reachable, wanted)
    if name in PICKS and read.argument == 0:
        return min(reachable, _picked(op, read, storages))
    return reachable


def _picked(op: Op, read: Read, storages: Mapping[int, Storage]) -> int:
    """Bound the elements that an index names; single elements count as their whole rows."""
    width = read.shape[-1] if read.shape else 1
    output = next((storages[w].shape for w in op.writes if w in storages), None)
    if output is None:
        return read.elements if op.index_elements is None else op.index_elements * width
    if output and output[-1] == width:
        return numel(output)
    if op.index_elements is not None and numel(output) <= op.index_elements:
        return numel(output) * width
    return read.elements


def _rows_of_view(read: Read, storage: Storage) -> int:
    """Bound the elements that a view covers; one that cuts columns counts as its whole rows."""
    total = numel(storage.shape)
    if read.elements >= total or not read.shape or not storage.shape:
        return min(read.elements, total)
    width, seen = storage.shape[-1], read.shape[-1]
    if seen and seen % width == 0:
        return read.elements
    return min(total, -(-read.elements // max(seen, 1)) * width)


def _links(
    trace: AllocationTrace, storages: Mapping[int, Storage]
) -> tuple[dict[int, list[Op]], dict[int, tuple[int, ...]]]:
    """Give the readers of each storage born in the trace, and the storages that a copy came from."""
    readers: dict[int, list[Op]] = defaultdict(list)
    sources: dict[int, tuple[int, ...]] = {}
    for op in trace.ops:
        looked_at = [r.storage for r in op.reads if r.storage in storages and not _is_overwritten(op, r)]
        for storage in dict.fromkeys(looked_at):
            if storages[storage].born_at >= 0:
                readers[storage].append(op)
        if base_name(op.site.op) in MOVES:
            for written in op.writes:
                sources[written] = tuple(s for s in looked_at if s != written)
    return dict(readers), sources


def _partly_read(storage: Storage, demanded: int) -> PartlyRead:
    total, width = numel(storage.shape), storage.shape[-1]
    return PartlyRead(
        storage=storage.id,
        bytes=storage.bytes,
        shape=storage.shape,
        dtype=storage.dtype,
        category=storage.category,
        site=storage.site,
        rows_total=total // width,
        rows_read=-(-demanded // width),
        share=demanded / total,
        chain=(),
        count=1,
    )


def _chain(
    root: Storage, readers: Mapping[int, list[Op]], storages: Mapping[int, Storage], demand: Mapping[int, int]
) -> tuple[ChainStep, ...]:
    """Follow the data of `root` from the op that computed it to the ops that read a part."""
    steps = [_step("computed", root.site, root)]
    frontier, seen = [root.id], {root.id}
    while frontier and len(steps) < CHAIN_LENGTH:
        here = frontier.pop(0)
        for op in readers.get(here, ()):
            name = base_name(op.site.op)
            kind: StepKind = "moved" if name in MOVES else "picked" if name in PICKS else "read"
            output = next((storages[w] for w in op.writes if w in storages and w != here), None)
            if len(steps) >= CHAIN_LENGTH or (kind == "moved" and output is None):
                continue
            steps.append(_step(kind, op.site, output))
            if kind == "moved" and output is not None and output.id not in seen:
                seen.add(output.id)
                frontier.append(output.id)
    return tuple(steps)


def _step(kind: StepKind, site: Site, output: Storage | None) -> ChainStep:
    if output is None:
        return ChainStep(kind=kind, site=site, storage=None, bytes=0, shape=())
    return ChainStep(kind=kind, site=site, storage=output.id, bytes=output.bytes, shape=output.shape)


def _is_overwritten(op: Op, read: Read) -> bool:
    return read.argument == 0 and base_name(op.site.op) in OVERWRITES


def _is_in_place(op: Op, read: Read) -> bool:
    return read.storage in op.writes and base_name(op.site.op) in MOVES


def _key(site: Site) -> tuple[object, ...]:
    return (site.module, site.op, site.phase, site.stack[:1])


def _one_per_site(found: Iterable[Found], *, weigh: Callable[[Found], int]) -> tuple[Found, ...]:
    """Keep the heaviest finding of each site, with the number that it stands for."""
    groups: dict[tuple[object, ...], list[Found]] = defaultdict(list)
    for item in found:
        groups[_key(item.site)].append(item)
    kept = [replace(max(group, key=weigh), count=len(group)) for group in groups.values()]
    return tuple(sorted(kept, key=lambda item: -weigh(item)))
