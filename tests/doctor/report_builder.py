"""Build forecasts by hand."""

from dflash_doctor.records.plan import ByteBand, Card, ModelSpec, RunPlan
from dflash_doctor.records.report import GpuReport, PeakAt, Verdict

GIB = 2**30
CAPACITY = round(94.97 * GIB)


def band(likely: int, spread: int = 0) -> ByteBand:
    """Make a band around a number of bytes."""
    return ByteBand(low=likely - spread, likely=likely, high=likely + spread, basis="modelled")


def card(capacity: int = CAPACITY) -> Card:
    """Make a card of a capacity."""
    return Card(
        name="RTX PRO 6000", memory_bytes=capacity, usable_bytes=capacity, compute_capability=(12, 0),
        num_multiprocessors=188, context=band(GIB), nccl_per_peer=band(0), source="test",
    )  # fmt: skip


def plan(**changes: object) -> RunPlan:
    """Make a plan of 7 targets and a drafter."""
    values: dict[str, object] = {
        "name": "test",
        "model": ModelSpec(name="Qwen3.6-27B", config={"model_type": "qwen3"}, origin="preset"),
        "cards": (card(),) * 8,
        **changes,
    }
    return RunPlan(**values)  # type: ignore[arg-type]


def gpu(
    index: int = 0, role: str = "target", *, resident: int = 50 * GIB, features: int = 3 * GIB,
    activations: int = 9 * GIB, reserved: int | None = None, verdict: Verdict = "fits",
    capacity: int = CAPACITY, failed: int | None = None, outside: ByteBand | None = None,
    peak_at: PeakAt | None = None, reason: str = "",
) -> GpuReport:  # fmt: skip
    """Make the forecast of one GPU; what is not given follows from the rest."""
    allocated = resident + features + activations
    reserved = allocated if reserved is None else reserved
    outside = outside or band(round(1.5 * GIB), GIB // 4)
    return GpuReport(
        index=index,
        role=role,
        peak_allocated_bytes=allocated,
        peak_reserved_bytes=reserved,
        outside=outside,
        capacity_bytes=capacity,
        headroom_bytes=capacity - outside.likely - reserved,
        resident_bytes={"weights": resident},
        features_bytes=features,
        activation_peak_bytes=activations,
        by_category_bytes={"weights": resident, "features": features, "activations": activations},
        peak_at=peak_at or PeakAt(module="layers.3.mlp", op="aten.mm.default", phase="forward", source=None),
        load_peak_bytes=resident,
        verdict=verdict,
        reason=reason,
        failed_request_bytes=failed,
    )
