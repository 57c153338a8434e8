"""DF4: buffers between the workers of a pipeline."""

from collections.abc import Iterable

from dflash_doctor.records.finding import Finding, Fix
from dflash_doctor.rules.context import RuleContext
from dflash_doctor.rules.placement import alike
from dflash_doctor.rules.rule import Rule
from dflash_doctor.units import format_bytes

MIN_SHARE = 0.10


class FeaturesInFlight(Rule):
    """Find GPUs on which feature slots take more than a tenth of the card.

    ## What it does

    Adds up the feature slots that a GPU holds at once, each [tokens, layers x hidden], with every slot
    full.

    ## Why it costs

    A slot for 65,536 tokens, five layers and a hidden size of 5,120 takes 3.1 GiB. A slot beyond the one
    in use and the one on its way buys no speed once the channel is full: the slower side sets the pace.

    ## Example

        while len(slots) < 4:                       # four slots on the drafter: 12.5 GiB
            slots.append(features.get().to(device))

    ## Instead

        dflash-doctor preflight --channel-slots 2

    ## How safe the fix is

    Safe: results don't depend on the number of slots. With one slot, sending and computing take turns.

    ## Known limits

    Copies that a step makes of its features count as activations, not here.
    """

    code = "DF401"
    name = "features-in-flight"
    severity = "warning"
    needs = ("plan", "fit")

    def check(self, context: RuleContext) -> Iterable[Finding]:
        """Report each group of GPUs whose slots take more than 10 % of the capacity."""
        assert context.plan is not None
        slots = context.plan.channel_slots
        for report, gpus in alike(context.gpu_reports):
            if report.features_bytes <= MIN_SHARE * report.capacity_bytes:
                continue
            share = f"{100 * report.features_bytes / report.capacity_bytes:.0f} %"
            count = f"{slots} slot" if slots == 1 else f"{slots} slots"
            yield self.finding(
                f"features in flight, {count} in the plan, take {share} of the card: "
                f"{format_bytes(report.features_bytes)}",
                gpus=gpus,
                num_bytes=report.features_bytes,
                fix=_fix(slots),
            )


def _fix(slots: int) -> Fix:
    if slots > 2:
        return Fix(text="hold two slots: one in use, one on its way", safety="safe",
                   setting="--channel-slots 2")  # fmt: skip
    return Fix(
        text="lower the token budget: a slot is as long as a packed row",
        safety="needs-care",
        setting="--token-budget",
    )
