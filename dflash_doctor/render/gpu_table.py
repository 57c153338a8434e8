"""The table of GPUs: its columns, in the order of a sum, and which of them give way on a narrow terminal."""

from collections.abc import Iterable, Sequence

from dflash_doctor.render.layout import table
from dflash_doctor.render.wording import VERDICTS, GpuGroup, band_text, gib, index_ranges

HEADER = (
    "GPU", "role", "resident", "features", "activations", "allocated", "reserved", "outside", "capacity",
    "headroom", "verdict",
)  # fmt: skip
LEFT = ("GPU", "role", "verdict")
ALIGN = "".join("l" if name in LEFT else "r" for name in HEADER)
LESS_NEEDED = ("outside", "capacity")
SHORT = {
    "resident": "resid.",
    "features": "feat.",
    "activations": "activ.",
    "allocated": "alloc.",
    "reserved": "reserv.",
    "headroom": "headr.",
}
NOTE = "In GiB; activations, allocated and reserved at their peaks"
WIDE_NOTE = f"{NOTE}; outside PyTorch is a band."
NARROW_NOTE = f"{NOTE}; headroom is what reserved and what lies outside PyTorch leave"


def gpu_row(group: GpuGroup) -> tuple[str, ...]:
    """Give the cells of a group of GPUs, one for each column of the header."""
    gpu = group.report
    return (
        index_ranges(group.indices),
        gpu.role,
        gib(sum(gpu.resident_bytes.values())),
        gib(gpu.features_bytes),
        gib(gpu.activation_peak_bytes),
        gib(gpu.peak_allocated_bytes),
        gib(gpu.peak_reserved_bytes),
        band_text(gpu),
        gib(gpu.capacity_bytes),
        gib(gpu.headroom_bytes),
        VERDICTS[gpu.verdict],
    )


def aligned_gpu_table(groups: Sequence[GpuGroup], width: int) -> tuple[list[str], str] | None:
    """Align header and groups with as many columns as the width holds, and a note; None if too narrow."""
    rows = [HEADER, *map(gpu_row, groups)]
    fewer = [_without(row, LESS_NEEDED) for row in rows]
    shortest = [[SHORT.get(name, name) for name in fewer[0]], *fewer[1:]]
    kept = [name in LEFT for name in fewer[0]]
    for cells, is_left in ((rows, [name in LEFT for name in HEADER]), (fewer, kept), (shortest, kept)):
        aligned = table(cells, [not left for left in is_left], width)
        if aligned is not None:
            return aligned, WIDE_NOTE if cells is rows else _narrow_note(groups)
    return None


def _without(row: Sequence[str], names: Iterable[str]) -> list[str]:
    return [cell for name, cell in zip(HEADER, row, strict=True) if name not in names]


def _narrow_note(groups: Sequence[GpuGroup]) -> str:
    capacities = {gib(group.report.capacity_bytes) for group in groups}
    return f"{NARROW_NOTE} of {capacities.pop()}." if len(capacities) == 1 else f"{NARROW_NOTE} of the card."
