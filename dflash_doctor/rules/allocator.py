"""DF5: memory that the caching allocator holds without using it."""

from collections.abc import Iterable

from dflash_doctor.records.finding import Finding, Fix
from dflash_doctor.rules.context import GIB, RuleContext
from dflash_doctor.rules.placement import alike
from dflash_doctor.rules.rule import Rule
from dflash_doctor.units import format_bytes

MIN_GAP_BYTES = GIB
MIN_GAP_SHARE = 0.05
EXPANDABLE = "expandable_segments:True"


def is_expandable(allocator: str) -> bool:
    """Say whether an allocator setting turns expandable segments on."""
    return EXPANDABLE.lower() in allocator.replace(" ", "").lower()


class FragmentationGap(Rule):
    """Find GPUs whose reserved peak is far above their allocated peak.

    ## What it does

    Compares the peak of what PyTorch reserves with the peak of what tensors use, both from a replay of the
    allocator. Reports a gap of more than 1 GiB and more than 5 % of what is reserved.

    ## Why it costs

    Reserved memory is gone for everybody else, and a request that finds only fragments fails though enough
    bytes are free in sum: "28.16 GiB is reserved by PyTorch but unallocated".

    ## Example

        PYTORCH_CUDA_ALLOC_CONF=                            # the default: segments of fixed size

    ## Instead

        PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True    # segments that grow, and are never too short

    Where that is on already, what helps is asking for the same sizes at every step: packed rows of one
    length, pieces of one size.

    ## How safe the fix is

    Safe: results don't change. Sharing CUDA tensors between processes, and some older drivers, don't get on
    with expandable segments.

    ## Known limits

    Fragmentation is a symptom where the run is simply too large: closing the gap then only postpones the
    end. Look at the other findings first.
    """

    code = "DF501"
    name = "fragmentation-gap"
    severity = "warning"
    needs = ("fit",)

    def check(self, context: RuleContext) -> Iterable[Finding]:
        """Report each group of GPUs with such a gap."""
        is_on = context.plan is not None and is_expandable(context.plan.allocator)
        for report, gpus in alike(context.gpu_reports):
            gap = report.peak_reserved_bytes - report.peak_allocated_bytes
            if gap <= max(MIN_GAP_BYTES, MIN_GAP_SHARE * report.peak_reserved_bytes):
                continue
            yield self.finding(
                f"reserved {format_bytes(report.peak_reserved_bytes)} for a peak of "
                f"{format_bytes(report.peak_allocated_bytes)}: gap of {format_bytes(gap)}",
                gpus=gpus,
                num_bytes=gap,
                confidence="likely",
                fix=_fix(is_on),
            )


def _fix(is_on: bool) -> Fix:
    if is_on:
        return Fix(
            text="ask for the same sizes at every step: packed rows of one length, pieces of one size",
            safety="safe",
        )
    return Fix(
        text=f"set PYTORCH_CUDA_ALLOC_CONF={EXPANDABLE}",
        safety="safe",
        setting=f'--allocator "{EXPANDABLE}"',
    )
