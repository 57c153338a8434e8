"""Hold the allocator simulation to histories that PyTorch's own allocator wrote."""

import gzip
import json
from dataclasses import dataclass
from pathlib import Path

import pytest

from dflash_doctor.analyze.allocator import Block, CachingAllocator, OutOfMemory

TRUTH = Path(__file__).parents[2] / "truth"
GIB = 1 << 30
Event = tuple[str, int, int]


@dataclass(frozen=True, slots=True)
class Played:
    """What the simulation did with a history."""

    device: CachingAllocator
    peak_allocated: int
    peak_reserved: int
    num_allocations: int
    wrong: list[tuple[int, int, int]]
    """(event, simulated, true) where the reserved bytes differ."""
    refused: OutOfMemory | None
    """What the simulation said where the history ran out of memory."""


def history(name: str) -> list[Event]:
    return [tuple(event) for event in json.loads(gzip.decompress((TRUTH / f"{name}.json.gz").read_bytes()))]


def play(events: list[Event], device: CachingAllocator) -> Played:
    blocks: dict[int, Block] = {}
    true_reserved = peak_allocated = peak_reserved = num_allocations = 0
    wrong: list[tuple[int, int, int]] = []
    refused = None
    for at, (action, number, size) in enumerate(events):
        if action in ("segment_alloc", "segment_map"):
            true_reserved += size
        elif action in ("segment_free", "segment_unmap"):
            true_reserved -= size
        elif action == "free":
            device.free(blocks.pop(number))
        elif action == "alloc":
            blocks[number] = device.malloc(size)
            num_allocations += 1
            if device.reserved != true_reserved:
                wrong.append((at, device.reserved, true_reserved))
            peak_allocated = max(peak_allocated, device.allocated)
            peak_reserved = max(peak_reserved, device.reserved)
        else:
            with pytest.raises(OutOfMemory) as caught:
                device.malloc(size)
            refused = caught.value
            break
    return Played(device, peak_allocated, peak_reserved, num_allocations, wrong, refused)


def test_a_run_that_fits_reserves_what_pytorch_reserved_after_every_event() -> None:
    played = play(history("train_ok"), CachingAllocator())
    assert (played.num_allocations, played.wrong, played.refused) == (1_746, [], None)
    assert (played.peak_allocated, played.peak_reserved) == (5_788_827_648, 6_788_481_024)
    assert (played.device.allocated, played.device.reserved) == (1_378_159_616, 6_788_481_024)
    assert played.device.num_retries == 0


def test_a_run_that_fails_gives_back_what_it_can_and_fails_at_the_same_request() -> None:
    events = history("train_oom")
    played = play(events, CachingAllocator(cap=24 * GIB))
    assert played.wrong == []
    assert (played.peak_allocated, played.peak_reserved) == (22_636_728_320, 23_051_894_784)
    assert played.refused is not None
    assert played.refused.request_bytes == 8 * GIB
    assert played.device.num_retries == 2


def test_what_is_free_when_it_fails_is_the_device_less_what_is_reserved() -> None:
    events = history("train_oom")
    (device_free,) = (number for action, number, _ in events if action == "oom")
    played = play(events, CachingAllocator(cap=24 * GIB))
    assert 24 * GIB - played.device.reserved == device_free == 2_852_126_720


@pytest.mark.parametrize(
    ("name", "cap", "allocated", "reserved", "num_retries"),
    [
        ("expandable", 150_000_000_000, 4_175_409_664, 4_366_270_464, 0),
        ("expandable_retry", 4_300_000_000, 4_175_409_664, 4_261_412_864, 2),
    ],
)
def test_expandable_segments_grow_and_shrink_as_pytorch_let_them(
    name: str, cap: int, allocated: int, reserved: int, num_retries: int
) -> None:
    played = play(history(name), CachingAllocator(cap=cap, expandable=True))
    assert (played.num_allocations, played.wrong, played.refused) == (4_844, [], None)
    assert (played.peak_allocated, played.peak_reserved) == (allocated, reserved)
    assert played.device.num_retries == num_retries


def test_expandable_segments_fail_at_the_same_request() -> None:
    played = play(history("expandable_oom"), CachingAllocator(cap=4_200_000_000, expandable=True))
    assert (played.num_allocations, played.wrong) == (2_369, [])
    assert (played.peak_allocated, played.peak_reserved) == (4_047_570_944, 4_114_612_224)
    assert played.refused is not None
    assert played.refused.request_bytes == 244 << 20
    assert 4_200_000_000 - played.device.reserved == 190_245_376
    assert played.device.num_retries == 1
