"""The allocator setting of a plan, PYTORCH_CUDA_ALLOC_CONF: what is refused, and what is not modelled."""

import os
import re
from collections.abc import Callable, Mapping

from dflash_doctor.intake.settings import did_you_mean

ENVIRONMENT = ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF")
_ENTRY = re.compile(r"(?:[^,\[\]]|\[[^\[\]]*\])+")


def check_allocator(text: str) -> str | None:
    """Say what is wrong with a value of PYTORCH_CUDA_ALLOC_CONF; None where nothing is."""
    seen: set[str] = set()
    for key, value in _entries(text):
        if value is None:
            return f"{key!r} is not of the form key:value"
        if key not in _READERS:
            return f"{key!r} is no option of PyTorch's allocator{did_you_mean(key, _READERS)}"
        if key in seen:
            return f"{key} is there twice"
        seen.add(key)
        wrong = _READERS[key](value)
        if wrong:
            return f"{key}:{value} {wrong}" if "not modelled" in wrong else f"{key} {wrong}, not {value}"
    return None


def allocator_notes(text: str, environ: Mapping[str, str] | None = None) -> tuple[str, ...]:
    """Say which settings are not modelled, and where the environment has others than the plan."""
    notes = [
        f"allocator setting {key} is not modelled"
        for key, _ in _entries(text)
        if key not in ("backend", "expandable_segments")
    ]
    found = os.environ if environ is None else environ
    for name in ENVIRONMENT:
        here = found.get(name, "").strip()
        if here and _as_map(here) != _as_map(text):
            notes.append(f"{name} is {here!r} here; the forecast is for {text!r} (--allocator)")
    return tuple(notes)


def _entries(text: str) -> list[tuple[str, str | None]]:
    """Split key:value,key:value; a value in brackets is kept whole, and is None where it is missing."""
    if not text.strip():
        return []
    whole = text.replace(" ", "")
    parts = _ENTRY.findall(whole)
    if ",".join(parts) != whole:
        return [(text.strip(), None)]
    pairs = [part.partition(":") for part in parts]
    return [(key, value) if key and value else (f"{key}{colon}{value}", None) for key, colon, value in pairs]


def _as_map(text: str) -> dict[str, str | None]:
    """Drop what PyTorch would do without being told."""
    return {key: value for key, value in _entries(text) if (key, value) != ("expandable_segments", "False")}


def _switch(value: str) -> str | None:
    return None if value in ("True", "False") else "is True or False"


def _whole(least: int) -> Callable[[str], str | None]:
    def read(value: str) -> str | None:
        if not re.fullmatch(r"[0-9]{1,9}", value):
            return "is a whole number"
        return None if int(value) >= least else f"is at least {least}"

    return read


def _threshold(value: str) -> str | None:
    is_number = re.fullmatch(r"[0-9]*\.?[0-9]+", value)
    return None if is_number and 0 < float(value) < 1 else "is a number between 0 and 1"


def _divisions(value: str) -> str | None:
    """Read one power of two, or a list [64:8,256:4,>:1] of sizes in MB with theirs."""
    if not value.startswith("["):
        return None if _is_power(value) else "is a power of two"
    for entry in value[1:-1].split(","):
        size, _, divisions = entry.partition(":")
        if not (size == ">" or _is_power(size)) or not _is_power(divisions):
            return "is a list such as [64:8,256:4,>:1] of powers of two"
    return None


def _is_power(text: str) -> bool:
    return bool(re.fullmatch(r"[0-9]{1,9}", text)) and int(text) & (int(text) - 1) == 0


def _backend(value: str) -> str | None:
    if value == "cudaMallocAsync":
        return "is not modelled: the forecast knows PyTorch's own allocator alone"
    return None if value == "native" else "is native or cudaMallocAsync"


def _refused(value: str) -> str | None:
    return "is not modelled: --gpu-memory says how much a GPU has"


_READERS: dict[str, Callable[[str], str | None]] = {
    "backend": _backend,
    "expandable_segments": _switch,
    "garbage_collection_threshold": _threshold,
    "graph_capture_record_stream_reuse": _switch,
    "large_segment_size_mb": _whole(2),
    "max_non_split_rounding_mb": _whole(20),
    "max_split_size_mb": _whole(20),
    "per_process_memory_fraction": _refused,
    "pinned_free_catch_all": _switch,
    "pinned_max_cached_size_mb": _whole(0),
    "pinned_max_round_threshold_mb": _whole(0),
    "pinned_num_register_threads": _whole(1),
    "pinned_reserve_segment_size_mb": _whole(0),
    "pinned_use_background_threads": _switch,
    "pinned_use_cuda_host_register": _switch,
    "release_lock_on_cudamalloc": _switch,
    "roundup_power2_divisions": _divisions,
    "throw_on_cudamalloc_oom": _switch,
}
