"""Give a target's trace slots of another size; everything else in it goes by pieces of the row."""

from dataclasses import replace

from dflash_doctor.records.trace import AllocationTrace, Storage

BY_THE_ROW = frozenset({"features", "inputs"})


def resize_slots(trace: AllocationTrace, tokens: int, new_tokens: int) -> AllocationTrace:
    """Resize the storages that hold a whole packed row from `tokens` to `new_tokens`.

    True for a target that takes the row in pieces: its activations do not know the row's length.
    """
    if tokens == new_tokens:
        return trace

    def resized(storage: Storage) -> Storage:
        if storage.category not in BY_THE_ROW or tokens not in storage.shape:
            return storage
        shape = tuple(new_tokens if size == tokens else size for size in storage.shape)
        return replace(storage, bytes=storage.bytes // tokens * new_tokens, shape=shape)

    return replace(trace, storages=tuple(resized(storage) for storage in trace.storages))
