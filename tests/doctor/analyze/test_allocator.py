"""Hold the caching-allocator simulation to hand-worked cases, one rule at a time."""

import random
from collections.abc import Sequence
from itertools import pairwise, permutations

import pytest

from dflash_doctor.analyze.allocator import (
    MIB,
    Block,
    CachingAllocator,
    OutOfMemory,
    round_size,
    segment_size,
)


def allocator(cap_mib: float | None = None, *, expandable: bool = False) -> CachingAllocator:
    return CachingAllocator(cap=None if cap_mib is None else int(cap_mib * MIB), expandable=expandable)


def take(device: CachingAllocator, *mib: float) -> list[Block]:
    return [device.malloc(int(size * MIB)) for size in mib]


def state(device: CachingAllocator) -> tuple[float, float]:
    """Give allocated and reserved, in MiB."""
    return device.allocated / MIB, device.reserved / MIB


@pytest.mark.parametrize(
    ("asked", "rounded"), [(1, 512), (511, 512), (512, 512), (513, 1024), (1 << 20, 1 << 20)]
)
def test_sizes_are_rounded_up_to_512_bytes(asked: int, rounded: int) -> None:
    assert round_size(asked) == rounded
    device = allocator()
    device.malloc(asked)
    assert device.allocated == rounded


@pytest.mark.parametrize(
    ("block", "segment"),
    [
        (512, 2 * MIB),
        (MIB, 2 * MIB),
        (MIB + 512, 20 * MIB),
        (10 * MIB - 512, 20 * MIB),
        (10 * MIB, 10 * MIB),
        (10 * MIB + 512, 12 * MIB),
        (12 * MIB, 12 * MIB),
    ],
)
def test_segments_are_of_2_and_20_mib_and_then_multiples_of_2(block: int, segment: int) -> None:
    assert segment_size(block) == segment
    device = allocator()
    device.malloc(block)
    assert device.reserved == segment


def test_requests_of_up_to_1_mib_share_2_mib_segments() -> None:
    device = allocator()
    take(device, 1, 0.5, 0.5)
    assert state(device) == (2, 2)
    take(device, 0.25)
    assert state(device) == (2.25, 4)


def test_larger_requests_share_20_mib_segments() -> None:
    device = allocator()
    take(device, 4, 4, 4, 4, 4)
    assert state(device) == (20, 20)
    take(device, 4)
    assert state(device) == (24, 40)


def test_the_small_and_the_large_pool_do_not_lend_to_each_other() -> None:
    device = allocator()
    (large,) = take(device, 5)
    device.free(large)
    take(device, 1)
    assert device.reserved == 22 * MIB
    take(device, 6)
    assert device.reserved == 22 * MIB


def test_a_small_block_is_split_from_512_bytes_on() -> None:
    device = allocator()
    device.malloc(MIB)
    device.malloc(MIB - 512)
    assert (device.allocated, device.reserved) == (2 * MIB - 512, 2 * MIB)
    device.malloc(1)
    assert (device.allocated, device.reserved) == (2 * MIB, 2 * MIB)


@pytest.mark.parametrize(("asked", "handed"), [(10 * MIB, 11 * MIB), (10 * MIB - 512, 10 * MIB - 512)])
def test_a_large_block_is_split_only_if_more_than_1_mib_remains(asked: int, handed: int) -> None:
    device = allocator()
    take(device, 9)
    assert device.malloc(asked).size == handed
    assert (device.allocated, device.reserved) == (9 * MIB + handed, 20 * MIB)


def test_what_a_segment_of_its_own_has_over_is_split_by_the_same_rule() -> None:
    kept, cut = allocator(), allocator()
    kept.malloc(11 * MIB + 512)
    assert (kept.allocated, kept.reserved) == (12 * MIB, 12 * MIB)
    cut.malloc(10 * MIB + 512)
    assert (cut.allocated, cut.reserved) == (10 * MIB + 512, 12 * MIB)


def test_the_smallest_block_that_fits_is_taken() -> None:
    device = allocator()
    seven, _, three, _, five, _ = take(device, 7, 1.5, 3, 1.5, 5, 2)
    assert device.reserved == 20 * MIB
    for block in (seven, three, five):
        device.free(block)
    (taken,) = take(device, 4)
    assert taken.address == five.address
    assert device.reserved == 20 * MIB


def test_the_older_of_two_equal_blocks_is_taken() -> None:
    device = allocator()
    older, newer = take(device, 30, 30)
    device.free(newer)
    device.free(older)
    (taken,) = take(device, 30)
    assert taken.address == older.address


@pytest.mark.parametrize("order", list(permutations(range(3))))
def test_free_neighbours_join_in_any_order(order: Sequence[int]) -> None:
    device = allocator()
    blocks = take(device, 6, 6, 6)
    for index in order:
        device.free(blocks[index])
    (joined,) = take(device, 19)
    assert joined.address == min(block.address for block in blocks)
    assert state(device) == (20, 20)


def test_blocks_of_two_segments_never_join() -> None:
    device = allocator()
    for block in take(device, 10, 10):
        device.free(block)
    take(device, 20)
    assert state(device) == (20, 40)


def test_a_live_neighbour_keeps_two_free_blocks_apart() -> None:
    device = allocator()
    first, _, last = take(device, 8, 4, 8)
    device.free(first)
    device.free(last)
    take(device, 9)
    assert state(device) == (13, 40)


def test_a_refused_segment_is_asked_for_again_after_free_segments_went_back() -> None:
    device = allocator(100)
    wanted = take(device, 30, 40)
    device.free(wanted[1])
    take(device, 60)
    assert (state(device), device.num_retries) == ((90, 90), 1)


def test_a_segment_with_one_live_block_is_not_given_back() -> None:
    device = allocator(42)
    parts = take(device, 9, 9, 2)
    small = take(device, 1, 1)
    for block in (parts[0], parts[1], *small):
        device.free(block)
    with pytest.raises(OutOfMemory):
        take(device, 30)
    assert state(device) == (2, 20)
    take(device, 18)
    assert state(device) == (20, 20)


def test_a_request_that_fits_exactly_under_the_cap_is_had() -> None:
    device = allocator(22)
    take(device, 0.5, 20)
    assert (state(device), device.num_retries) == ((20.5, 22), 0)


@pytest.mark.parametrize(
    ("asked", "driver_was_asked_for"), [(1, 2), (1.5, 20), (9.5, 20), (10, 10), (10.5, 12), (8192, 8192)]
)
@pytest.mark.parametrize("expandable", [False, True])
def test_out_of_memory_tells_the_segment_that_was_asked_for(
    asked: float, driver_was_asked_for: float, expandable: bool
) -> None:
    device = allocator(0, expandable=expandable)
    with pytest.raises(OutOfMemory) as refused:
        take(device, asked)
    assert refused.value.request_bytes == driver_was_asked_for * MIB
    assert (state(device), device.num_retries) == ((0, 0), 1)


def test_an_expandable_range_grows_by_pages_of_2_or_20_mib() -> None:
    device = allocator(expandable=True)
    take(device, 0.5)
    assert state(device) == (0.5, 2)
    (first,) = take(device, 30)
    assert state(device) == (30.5, 42)
    (second,) = take(device, 15)
    assert state(device) == (45.5, 62)
    assert second.address == first.address + 30 * MIB


def test_an_expandable_range_splits_large_blocks_from_512_bytes_on() -> None:
    device = allocator(expandable=True)
    block = device.malloc(20 * MIB - 512)
    assert block.size == 20 * MIB - 512
    assert block.next is not None
    assert (block.next.size, block.next.free) == (512, True)


def test_an_expandable_range_is_not_broken_by_the_sizes_of_old_requests() -> None:
    rigid, elastic = allocator(), allocator(expandable=True)
    for device in (rigid, elastic):
        for size in (20, 40, 60, 80):
            (block,) = take(device, size)
            device.free(block)
    assert rigid.reserved == 200 * MIB
    assert elastic.reserved == 80 * MIB


def test_best_fit_counts_what_an_expandable_block_can_grow_to() -> None:
    device = allocator(expandable=True)
    first, _ = take(device, 30, 5)
    device.free(first)
    (taken,) = take(device, 4)
    assert taken.address == first.address


def test_whole_free_pages_are_taken_back_under_a_cap() -> None:
    device = allocator(60, expandable=True)
    first, _ = take(device, 30, 5)
    device.free(first)
    (taken,) = take(device, 40)
    assert taken.address == first.address + 35 * MIB
    assert (state(device), device.num_retries) == ((45, 60), 1)
    take(device, 10)
    assert (state(device), device.num_retries) == ((55, 60), 1)


def test_a_page_that_was_taken_back_is_mapped_again() -> None:
    device = allocator(60, expandable=True)
    first, _ = take(device, 30, 5)
    device.free(first)
    device.release_cached()
    assert state(device) == (5, 20)
    (again,) = take(device, 30)
    assert again.address == first.address
    assert state(device) == (35, 40)


def test_a_range_spans_nine_eighths_of_the_device() -> None:
    """The block at the end can grow no further, so that it is the smaller one, not the first."""
    device = allocator(160, expandable=True)
    first, second, _ = take(device, 40, 40, 20)
    device.free(second)
    (big,) = take(device, 70)
    assert (big.address - first.address, device.num_retries) == (100 * MIB, 1)
    device.free(first)
    (taken,) = take(device, 5)
    assert taken.address - first.address == 170 * MIB


@pytest.mark.parametrize("expandable", [False, True])
def test_blocks_never_overlap_and_everything_can_be_given_back(expandable: bool) -> None:
    chance = random.Random(0)
    device = allocator(400, expandable=expandable)
    live: list[Block] = []
    refused = 0
    for _ in range(3_000):
        if live and chance.random() < 0.48:
            device.free(live.pop(chance.randrange(len(live))))
            continue
        try:
            live.append(device.malloc(int(2 ** chance.uniform(8, 26))))
        except OutOfMemory:
            refused += 1
    assert refused > 10
    assert device.num_retries >= refused
    ends = sorted((block.address & ~1, (block.address & ~1) + block.size) for block in live)
    assert all(stop <= start for (_, stop), (start, _) in pairwise(ends))
    assert device.allocated == sum(block.size for block in live)
    assert device.allocated <= device.reserved <= 400 * MIB
    for block in live:
        device.free(block)
    device.release_cached()
    assert state(device) == (0, 0)


def test_the_layout_tells_two_states_apart() -> None:
    device = allocator()
    first, second = take(device, 4, 6)
    before = device.layout()
    device.free(first)
    assert device.layout() == (6 * MIB, 20 * MIB, [], [4 * MIB, 10 * MIB])
    take(device, 4)
    assert device.layout() == before
    device.free(second)
    assert device.layout() != before
