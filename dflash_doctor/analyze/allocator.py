"""Simulate PyTorch's CUDA caching allocator: what is reserved, what fragments, what cannot be had.

Rules of c10/cuda/CUDACachingAllocator.cpp (native backend, one stream): sizes are rounded up to
512 B; requests of up to 1 MiB come from 2 MiB segments, larger ones from 20 MiB segments or, from
10 MiB on, from segments of their own size rounded up to 2 MiB; best fit, split and coalesced;
cached segments are given back to the driver and the request tried again when it is refused.
"""

from bisect import bisect_left, insort
from dataclasses import dataclass

MIB = 1 << 20
MIN_BLOCK = 512
SMALL_SIZE = MIB
SMALL_SEGMENT = 2 * MIB
LARGE_SEGMENT = 20 * MIB
MIN_LARGE = 10 * MIB
ROUND_LARGE = 2 * MIB
BOUNDLESS = LARGE_SEGMENT << 20
"""Bytes of a device without a bound: more than any has."""


def round_size(num_bytes: int) -> int:
    """Round a request up to a block size."""
    return max(MIN_BLOCK, -(-num_bytes // MIN_BLOCK) * MIN_BLOCK)


def segment_size(block_bytes: int) -> int:
    """Give the size of the segment that a block of this size would be cut from."""
    if block_bytes <= SMALL_SIZE:
        return SMALL_SEGMENT
    if block_bytes < MIN_LARGE:
        return LARGE_SEGMENT
    return -(-block_bytes // ROUND_LARGE) * ROUND_LARGE


@dataclass(slots=True, eq=False)
class Block:
    """A stretch of a segment, in use or free; neighbours in the same segment are linked."""

    address: int
    size: int
    free: bool = False
    mapped: bool = True
    previous: "Block | None" = None
    next: "Block | None" = None


class OutOfMemory(Exception):
    """The request could not be had under the cap; `request_bytes` is what the driver was asked for."""

    def __init__(self, request_bytes: int) -> None:
        super().__init__(request_bytes)
        self.request_bytes = request_bytes


class Pool:
    """The free blocks of one size class, smallest first, the older segment first among equals."""

    def __init__(self, small: bool) -> None:
        self.small = small
        self.unmapped: list[Block] = []
        """Stretches of expandable ranges that have no memory behind them."""
        self._order: list[tuple[int, int]] = []
        self._blocks: dict[int, Block] = {}

    def add(self, block: Block) -> None:
        """Put a free block in."""
        insort(self._order, (block.size, block.address))
        self._blocks[block.address] = block

    def remove(self, block: Block) -> None:
        """Take a block out."""
        del self._order[bisect_left(self._order, (block.size, block.address))]
        del self._blocks[block.address]

    def best_fit(self, size: int, expandable: bool) -> Block | None:
        """Find the smallest free block that holds `size`; expandable ones count what they can grow."""
        at = bisect_left(self._order, (size, -1))
        if at == len(self._order):
            return None
        best = self._blocks[self._order[at][1]]
        while expandable and at + 1 < len(self._order):
            other = self._blocks[self._order[at + 1][1]]
            if _grown(other) >= _grown(best):
                break
            best, at = other, at + 1
        return best

    def sizes(self) -> list[int]:
        """List the sizes of the free blocks, smallest first."""
        return [size for size, _ in self._order]

    def blocks(self) -> list[Block]:
        """List the free blocks, smallest first."""
        return [self._blocks[address] for _, address in self._order]


def _grown(block: Block) -> int:
    after = block.next
    return block.size + (after.size if after is not None and not after.mapped else 0)


class CachingAllocator:
    """One device's allocator; `cap` bounds the bytes that it may reserve (None: no bound)."""

    def __init__(self, *, cap: int | None = None, expandable: bool = False) -> None:
        self.cap = cap
        self.expandable = expandable
        self.allocated = 0
        self.reserved = 0
        self.num_retries = 0
        self._pools = {True: Pool(True), False: Pool(False)}
        self._next_address = 0

    def malloc(self, num_bytes: int) -> Block:
        """Hand out a block; raises OutOfMemory where the cap does not allow the segment it needs."""
        size = round_size(num_bytes)
        pool = self._pools[size <= SMALL_SIZE]
        block = pool.best_fit(size, self.expandable)
        if block is not None:
            pool.remove(block)
        else:
            block = self._grow(pool, size)
            if block is None:
                self.release_cached()
                self.num_retries += 1
                block = self._grow(pool, size)
            if block is None:
                raise OutOfMemory(segment_size(size))
        self._split(pool, block, size)
        block.free = False
        self.allocated += block.size
        return block

    def free(self, block: Block) -> None:
        """Take a block back and join it with free neighbours."""
        self.allocated -= block.size
        pool = self._pool_of(block)
        block.free = True
        self._merge_neighbours(pool, block)
        pool.add(block)

    def layout(self) -> tuple[int, int, list[int], list[int]]:
        """Describe the state: bytes allocated and reserved, and the sizes of the free blocks of each pool."""
        small, large = (self._pools[kind].sizes() for kind in (True, False))
        return self.allocated, self.reserved, small, large

    def release_cached(self) -> None:
        """Give every wholly free segment (or page, where segments expand) back to the driver."""
        for pool in self._pools.values():
            for block in pool.blocks():
                if self.expandable:
                    self._unmap_pages(pool, block)
                elif block.previous is None and block.next is None:
                    pool.remove(block)
                    self.reserved -= block.size

    # -- segments ----------------------------------------------------------------------------------

    def _pool_of(self, block: Block) -> Pool:
        return self._pools[block.address & 1 == 1]

    def _allowed(self, num_bytes: int) -> bool:
        return self.cap is None or self.reserved + num_bytes <= self.cap

    def _grow(self, pool: Pool, size: int) -> Block | None:
        if self.expandable:
            return self._expand(pool, size)
        total = segment_size(size)
        if not self._allowed(total):
            return None
        self.reserved += total
        return Block(self._new_address(pool, total), total)

    def _new_address(self, pool: Pool, size: int) -> int:
        """Addresses grow, so that the older segment is the lower; bit 0 tells the pool."""
        address = self._next_address
        self._next_address += size + MIN_BLOCK
        return address | pool.small

    def _split(self, pool: Pool, block: Block, size: int) -> None:
        remaining = block.size - size
        if remaining < MIN_BLOCK or (not pool.small and not self.expandable and remaining <= SMALL_SIZE):
            return
        rest = Block(block.address + size, remaining, free=True, previous=block, next=block.next)
        if block.next is not None:
            block.next.previous = rest
        block.next, block.size = rest, size
        pool.add(rest)

    def _merge_neighbours(self, pool: Pool, block: Block) -> None:
        before, after = block.previous, block.next
        if before is not None and before.free and before.mapped == block.mapped:
            self._forget(pool, before)
            block.address, block.size = before.address, block.size + before.size
            self._relink(block, before.previous, block.next)
        if after is not None and after.free and after.mapped == block.mapped:
            self._forget(pool, after)
            block.size += after.size
            self._relink(block, block.previous, after.next)

    def _forget(self, pool: Pool, block: Block) -> None:
        if block.mapped:
            pool.remove(block)
        else:
            pool.unmapped.remove(block)

    def _relink(self, block: Block, previous: Block | None, following: Block | None) -> None:
        block.previous, block.next = previous, following
        if previous is not None:
            previous.next = block
        if following is not None:
            following.previous = block

    # -- expandable segments -----------------------------------------------------------------------

    def _expand(self, pool: Pool, size: int) -> Block | None:
        block = self._room(pool, size)
        if not block.mapped and not self._map(pool, block, min(block.size, size)):
            return None
        while block.size < size:
            after = block.next
            if after is None:
                raise ValueError("an expandable range ended before its room")
            if not self._map(pool, after, min(size - block.size, after.size)):
                return None
            block = after
        pool.remove(block)
        return block

    def _room(self, pool: Pool, size: int) -> Block:
        """Find the lowest run of free and unmapped blocks that holds `size`, or open a new range."""
        for block in sorted(pool.unmapped, key=lambda b: b.address):
            first = block
            if block.previous is not None and block.previous.free:
                first = block.previous
            room, at = 0, first
            while room < size and at.free:
                room += at.size
                if at.next is None:
                    break
                at = at.next
            if room >= size:
                return first
        self._next_address = -(-self._next_address // LARGE_SEGMENT) * LARGE_SEGMENT
        length = self._range_bytes(SMALL_SEGMENT if pool.small else LARGE_SEGMENT)
        block = Block(self._new_address(pool, length), length, free=True, mapped=False)
        pool.unmapped.append(block)
        return block

    def _range_bytes(self, page: int) -> int:
        """Size a range's address space: 9/8 of the device in whole pages (`ExpandableSegment`)."""
        device = BOUNDLESS if self.cap is None else self.cap
        return max(1, -(-(device + device // 8) // page)) * page

    def _map(self, pool: Pool, block: Block, size: int) -> bool:
        page = SMALL_SEGMENT if pool.small else LARGE_SEGMENT
        size = min(-(-size // page) * page, block.size)
        if not self._allowed(size):
            return False
        self.reserved += size
        if size < block.size:
            rest = Block(block.address + size, block.size - size, free=True, mapped=False)
            self._relink(rest, block, block.next)
            block.size = size
            pool.unmapped.append(rest)
        pool.unmapped.remove(block)
        block.mapped = True
        self._merge_neighbours(pool, block)
        pool.add(block)
        return True

    def _unmap_pages(self, pool: Pool, block: Block) -> None:
        page = SMALL_SEGMENT if pool.small else LARGE_SEGMENT
        base = block.address & ~1
        start = -(-base // page) * page
        stop = (base + block.size) // page * page
        if stop <= start:
            return
        pool.remove(block)
        head, tail = start - base, base + block.size - stop
        if head:
            front = Block(block.address, head, free=True)
            self._relink(front, block.previous, block)
            block.previous = front
            pool.add(front)
        if tail:
            back = Block(block.address + block.size - tail, tail, free=True)
            self._relink(back, block, block.next)
            block.next = back
            pool.add(back)
        block.address, block.size, block.mapped = block.address + head, stop - start, False
        self.reserved -= block.size
        self._merge_neighbours(pool, block)
        pool.unmapped.append(block)
