"""Mend a plan: leave out what is never read, select before projecting, and take the target in pieces."""

from dataclasses import replace

from dflash_doctor.records.finding import Finding
from dflash_doctor.records.plan import RunPlan
from dflash_doctor.records.report import GpuReport, Savings

TUNED_TARGET_ROWS = 8_192
TUNED_SLOTS = 2
TUNED_ALLOCATOR = "expandable_segments:True"
NEVER_MADE = frozenset({"DF001", "DF002"})


def tuned(plan: RunPlan) -> RunPlan:
    """Give the plan with the trainer's own steps and settings that change no result.

    A user's own steps are replaced by the trainer's, since their code cannot be mended from here.
    """
    loss = replace(plan.loss, projection="selected", chunked=True)
    return replace(
        plan,
        name=f"{plan.name}-tuned",
        target_forward="body",
        target_rows=plan.target_rows or TUNED_TARGET_ROWS,
        channel_slots=min(plan.channel_slots, TUNED_SLOTS),
        loss=loss,
        allocator=plan.allocator or TUNED_ALLOCATOR,
        target_step=None,
        draft_step=None,
    )


def savings(
    before: tuple[GpuReport, ...], after: tuple[GpuReport, ...], findings: tuple[Finding, ...]
) -> Savings:
    """Tell what a fix saves: bytes of tensors never made over all GPUs, and the drop of each peak."""
    never = sum((f.bytes or 0) * len(f.gpus) for f in findings if f.code in NEVER_MADE)
    drops = tuple(
        old.peak_allocated_bytes - new.peak_allocated_bytes for old, new in zip(before, after, strict=True)
    )
    return Savings(never_made_bytes=never, peak_drop_bytes=drops)


def state_alone_exceeds(gpu: GpuReport) -> bool:
    """Say whether what is resident alone is more than the card holds; no smaller budget helps then."""
    return sum(gpu.resident_bytes.values()) + gpu.outside.likely > gpu.capacity_bytes
