"""DF3: what is placed on a GPU, and whether it fits."""

from collections.abc import Iterable, Iterator

from dflash_doctor.records.finding import Finding, Fix
from dflash_doctor.records.report import GpuReport
from dflash_doctor.rules.context import RuleContext
from dflash_doctor.rules.rule import Rule
from dflash_doctor.units import format_bytes

DEFAULT_MARGIN = 0.04
SMALLER_TARGET = (
    "shard the model over several GPUs, quantise it, or take a larger card; "
    "a smaller token budget cannot help"
)
SMALLER_DRAFTER = (
    "shard the drafter over several GPUs, give it fewer layers (--draft-layers) or an optimizer with less "
    "state (--optimizer), or take a larger card; a smaller token budget cannot help"
)


def alike(reports: tuple[GpuReport, ...]) -> Iterator[tuple[GpuReport, tuple[int, ...]]]:
    """Give one report for all GPUs of a role that have the same numbers, with their indices."""
    groups: dict[tuple[object, ...], list[GpuReport]] = {}
    for report in reports:
        key = (
            report.role, report.verdict, report.capacity_bytes, report.headroom_bytes,
            report.peak_allocated_bytes, report.peak_reserved_bytes, report.features_bytes,
        )  # fmt: skip
        groups.setdefault(key, []).append(report)
    for group in groups.values():
        yield group[0], tuple(report.index for report in group)


class DeviceOverCapacity(Rule):
    """Find GPUs on which the run does not fit.

    ## What it does

    Reports each GPU whose forecast says so: three steady steps with every slot full, run through the
    caching allocator under a cap of the capacity less what lies outside PyTorch, ask for memory that cannot
    be had.

    ## Why it costs

    The run stops with an OutOfMemoryError, often only after minutes of loading, and in a pipeline every
    other worker then waits or fails too.

    ## Example

        dflash-doctor preflight --preset founding-crash      # needs more than 94.97 GiB on each of 8 GPUs

    ## Instead

    First remove waste that other findings name (full-vocabulary logits, dense masks): it is free. Then
    shorten the packed row (`--token-budget`), the pieces of the target (`--target-rows`), or the slots in
    flight (`--channel-slots`). Where what is resident alone exceeds the card, none of these can help: shard
    or quantise the model, or take a larger card.

    ## How safe the fix is

    A smaller budget changes how many tokens a step sees, and so the training; pieces and slots change only
    the speed. Sharding and quantising need care.

    ## Known limits

    What lies outside PyTorch (context, NCCL, kernels) is modelled and given with a band; a verdict within
    that band of the line can go either way.
    """

    code = "DF301"
    name = "device-over-capacity"
    severity = "error"
    needs = ("fit",)

    def check(self, context: RuleContext) -> Iterable[Finding]:
        """Report each group of GPUs with the verdict wont-fit."""
        for report, gpus in alike(context.gpu_reports):
            if report.verdict == "wont-fit":
                yield self._report(report, gpus)

    def _report(self, report: GpuReport, gpus: tuple[int, ...]) -> Finding:
        outside = report.outside.likely
        resident = sum(report.resident_bytes.values())
        needed = report.peak_reserved_bytes + outside
        short = needed - report.capacity_bytes
        capacity = format_bytes(report.capacity_bytes)
        if resident + outside > report.capacity_bytes:
            short = resident + outside - report.capacity_bytes
            message = (
                f"the {report.role}'s weights and states alone take {format_bytes(resident)}, beside "
                f"{format_bytes(outside)} outside PyTorch, of {capacity}: over by {format_bytes(short)}"
            )
            fix = Fix(
                text=SMALLER_DRAFTER if report.role == "drafter" else SMALLER_TARGET,
                safety="needs-care",
            )
        else:
            message = f"the {report.role} needs {format_bytes(needed)} of {capacity}"
            if short > 0:
                message += f": over by {format_bytes(short)}"
            elif report.failed_request_bytes is not None:
                short = report.failed_request_bytes
                message += f": no block of {format_bytes(short)} can be had"
            fix = Fix(
                text="remove any waste that other findings name; then lower the token budget",
                safety="needs-care",
                setting="--token-budget",
            )
        return self.finding(message, gpus=gpus, num_bytes=max(short, 0), confidence="likely", fix=fix)


class ThinHeadroom(Rule):
    """Find GPUs on which the run fits with less to spare than the margin.

    ## What it does

    Reports GPUs whose verdict is tight: the run fits the card, but not with the margin kept free.

    ## Why it costs

    A forecast has an error, drivers and libraries change, and a neighbour may take memory. When the
    allocator runs out of free memory it frees its cache and asks again, which stalls the GPU each time.

    ## Example

        reserved 92.10 GiB + outside 1.50 GiB of 94.97 GiB: 1.37 GiB to spare, margin 3.80 GiB

    ## Instead

    Lower `--token-budget` a little, or `--target-rows` or `--channel-slots`; or accept the risk with a
    smaller `--margin`.

    ## How safe the fix is

    Safe for pieces and slots; a smaller token budget changes how many tokens a step sees.

    ## Known limits

    The margin is a share of the card and knows nothing of how exact this very forecast is.
    """

    code = "DF302"
    name = "thin-headroom"
    severity = "warning"
    needs = ("fit",)

    def check(self, context: RuleContext) -> Iterable[Finding]:
        """Report each group of tight GPUs."""
        share = context.plan.margin if context.plan is not None else DEFAULT_MARGIN
        for report, gpus in alike(context.gpu_reports):
            margin = round(report.capacity_bytes * share)
            if report.verdict != "tight":
                continue
            yield self.finding(
                f"the {report.role} has {format_bytes(report.headroom_bytes)} to spare, "
                f"less than the margin of {format_bytes(margin)}",
                gpus=gpus,
                num_bytes=max(margin - report.headroom_bytes, 0),
                confidence="likely",
                fix=Fix(
                    text="lower the token budget a little, the rows of a target's piece, "
                    "or the slots in flight",
                    safety="needs-care",
                    setting="--token-budget",
                ),
            )
