"""Everything that must be in place while a step runs on meta."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager

from dflash_doctor.engines.meta.choices import cuda_choices
from dflash_doctor.engines.meta.device import Device
from dflash_doctor.engines.meta.flex import flex_stand_in
from dflash_doctor.engines.meta.mode import MetaMode
from dflash_doctor.engines.meta.modules import follow_modules
from dflash_doctor.engines.meta.recorder import Recorder
from dflash_doctor.records.plan import Card


def device_of(card: Card | None) -> Device:
    """Take the device's kind from a card; None is compute capability 12.0."""
    if card is None:
        return Device()
    return Device(compute_capability=card.compute_capability, num_multiprocessors=card.num_multiprocessors)


@contextmanager
def _seldom_collected() -> Iterator[None]:
    """Let Python look for garbage cycles seldom: the books of a trace are many small objects."""
    before = gc.get_threshold()
    gc.collect(0)  # what was traced earlier must not decide when garbage of this trace is found
    gc.set_threshold(100_000, 50, 100)
    try:
        yield
    finally:
        gc.set_threshold(*before)


@contextmanager
def meta_session(recorder: Recorder, device: Device) -> Iterator[None]:
    """Record every op on meta tensors, with CUDA's choices and kernels, until the context ends."""
    with (
        _seldom_collected(),
        flex_stand_in(),
        follow_modules(recorder),
        cuda_choices(device),
        MetaMode(recorder, device),
    ):
        yield
