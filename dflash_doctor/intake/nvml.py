"""Ask the driver which GPUs there are, how much memory is free on each, and who holds the rest."""

import dataclasses
import importlib
import os
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from dflash_doctor.intake.cards import DEFAULT_CARD, card_named, card_names, kind_of
from dflash_doctor.records.plan import Card
from dflash_doctor.units import format_bytes

_CORES_PER_MULTIPROCESSOR = {(7, 0): 64, (7, 5): 64, (8, 0): 64}
# The struct version that NVML asks for: the size of nvmlMemory_v2_t (40 bytes) and 2 << 24.
_MEMORY_V2 = 40 | 2 << 24


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundGpus:
    """The GPUs of this machine; `reason` says why there are none."""

    cards: tuple[Card, ...]
    reason: str | None = None


def gpus_from_nvml(nvml: Any = None, environ: Mapping[str, str] | None = None) -> FoundGpus:
    """Read every visible GPU: total and free memory, name, compute capability, other processes.

    CUDA_VISIBLE_DEVICES is obeyed for indices and UUIDs. `nvml` stands in for pynvml in tests.
    """
    try:
        nvml = importlib.import_module("pynvml") if nvml is None else nvml
        nvml.nvmlInit()
    except Exception as error:  # no library, no driver, no permission: each is a reason, none a failure
        return FoundGpus(cards=(), reason=f"no NVIDIA driver answers ({str(error) or type(error).__name__})")
    try:
        handles = [nvml.nvmlDeviceGetHandleByIndex(index) for index in range(nvml.nvmlDeviceGetCount())]
        chosen = list(_visible(nvml, handles, os.environ if environ is None else environ))
        cards = tuple(_card(nvml, handle) for handle in chosen)
    except Exception as error:  # a driver that half works is treated as none
        return FoundGpus(cards=(), reason=f"the NVIDIA driver cannot list its GPUs ({error})")
    finally:
        with suppress(Exception):
            nvml.nvmlShutdown()
    if cards:
        return FoundGpus(cards=cards)
    return FoundGpus(cards=(), reason="no GPU is visible" if handles else "the NVIDIA driver has no GPU")


def _visible(nvml: Any, handles: list[Any], environ: Mapping[str, str]) -> Iterator[Any]:
    wanted = environ.get("CUDA_VISIBLE_DEVICES")
    if wanted is None:
        yield from handles
        return
    for entry in (part.strip() for part in wanted.split(",")):
        if entry.isdecimal() and int(entry) < len(handles):
            yield handles[int(entry)]
            continue
        match = [
            handle for handle in handles if entry and _text(nvml.nvmlDeviceGetUUID(handle)).startswith(entry)
        ]
        if len(match) != 1:  # CUDA too ignores what follows the first entry that it does not know
            return
        yield match[0]


def _card(nvml: Any, handle: Any) -> Card:
    name = _text(nvml.nvmlDeviceGetName(handle))
    total, free = _memory(nvml, handle)
    major, minor = nvml.nvmlDeviceGetCudaComputeCapability(handle)
    kind = kind_of(name)
    like = card_named(kind or _same_generation(major))
    count = like.num_multiprocessors if kind else _multiprocessors(nvml, handle, (major, minor))
    return dataclasses.replace(
        like,
        name=name,
        memory_bytes=total,
        usable_bytes=min(free, total),
        compute_capability=(major, minor),
        num_multiprocessors=count or like.num_multiprocessors,
        source="NVML on this machine",
        other_processes=tuple(_other_processes(nvml, handle)),
    )


def _same_generation(major: int) -> str:
    """Name a card of the table whose context is a fair guess for an unknown one."""
    return next(
        (name for name in card_names() if card_named(name).compute_capability[0] == major), DEFAULT_CARD
    )


def _memory(nvml: Any, handle: Any) -> tuple[int, int]:
    """Read total and free bytes; what the driver reserves is no part of CUDA's total."""
    try:
        info = nvml.nvmlDeviceGetMemoryInfo(handle, version=_MEMORY_V2)
        return int(info.total - info.reserved), int(info.free)
    except Exception:  # older drivers know the first version only
        info = nvml.nvmlDeviceGetMemoryInfo(handle)
        return int(info.total), int(info.free)


def _multiprocessors(nvml: Any, handle: Any, capability: tuple[int, int]) -> int | None:
    with suppress(Exception):
        return int(nvml.nvmlDeviceGetNumGpuCores(handle)) // _CORES_PER_MULTIPROCESSOR.get(capability, 128)
    return None


def _other_processes(nvml: Any, handle: Any) -> Iterator[str]:
    seen: set[int] = {os.getpid()}
    for ask in ("nvmlDeviceGetComputeRunningProcesses", "nvmlDeviceGetGraphicsRunningProcesses"):
        processes: list[Any] = []
        with suppress(Exception):
            processes = getattr(nvml, ask)(handle)
        for process in processes:
            if process.pid in seen:
                continue
            seen.add(process.pid)
            used = process.usedGpuMemory
            size = "an unknown size" if used is None else format_bytes(int(used))
            yield f"{_process_name(nvml, process.pid)} (pid {process.pid}) holds {size}"


def _process_name(nvml: Any, pid: int) -> str:
    with suppress(Exception):
        name = _text(nvml.nvmlSystemGetProcessName(pid)).split("\0")[0]
        shown = "".join(char for char in os.path.basename(name.split(" ")[0]) if char.isprintable())
        return shown or "a process"
    return "a process"


def _text(value: str | bytes) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else value
