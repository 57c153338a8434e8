"""DF9: where the doctor's own forecast is less than certain."""

from collections.abc import Iterable

from dflash_doctor.records.finding import Finding, Fix
from dflash_doctor.records.trace import Site, ValueRead
from dflash_doctor.rules.context import RuleContext, source_of
from dflash_doctor.rules.rule import Rule

MAX_NAMES = 5


class UntracedOp(Rule):
    """Find ops whose inner allocations the engine had no model for.

    ## What it does

    Lists ops, mostly custom kernels, of which only inputs and outputs are known.

    ## Why it costs

    A kernel may allocate scratch memory while it runs. Where it is unknown it counts as nothing, so the
    peak may be higher than forecast.

    ## Example

        my_package::fused_scan(x)        # a kernel of your own

    ## Instead

    Compare with a measurement, `torch.cuda.max_memory_allocated()` around the op, or use the operators of
    PyTorch.

    ## How safe the fix is

    Safe: nothing about the run changes.

    ## Known limits

    An op that hides its allocations from PyTorch's allocator altogether is not seen by any engine.
    """

    code = "DF901"
    name = "untraced-op"
    severity = "warning"
    needs = ("trace",)

    def check(self, context: RuleContext) -> Iterable[Finding]:
        """Report one finding a role, naming the ops."""
        for role, trace in context.op_traces().items():
            ops = trace.untraced_ops
            if ops:
                names = ", ".join(ops[:MAX_NAMES])
                more = f" and {len(ops) - MAX_NAMES} more" if len(ops) > MAX_NAMES else ""
                yield self.finding(
                    f"inner allocations of {names}{more} are not known and count as nothing",
                    gpus=context.gpus(role),
                    num_bytes=None,
                )


class ValueDependentShape(Rule):
    """Find values that the step reads back from the device and that the engine does not know.

    ## What it does

    Counts, by source line, reads such as `.item()`, `.tolist()`, `nonzero` or `if tensor:` of data that is
    not followed by value. Small integers are followed; floating-point data is not.

    ## Why it costs

    The value may decide a shape or a branch, and then the real run takes another path than the one
    forecast. On a GPU each such read also waits for the device.

    ## Example

        rows = hidden[loss > threshold]              # the number of rows depends on values

    ## Instead

        rows = hidden[anchors]                       # anchors sampled on the CPU, their number known

    ## How safe the fix is

    Needs care: what is selected must stay the same.

    ## Known limits

    Many such reads are harmless, a log line for one; the forecast cannot tell which.
    """

    code = "DF902"
    name = "value-dependent-shape"
    severity = "warning"
    needs = ("trace",)

    def check(self, context: RuleContext) -> Iterable[Finding]:
        """Report one finding a source line."""
        for role, trace in context.op_traces().items():
            by_line: dict[str, list[ValueRead]] = {}
            for read in trace.value_reads:
                if not read.known:
                    by_line.setdefault(_line(read.site), []).append(read)
            for reads in by_line.values():
                count = sum(read.count for read in reads)
                times = "once" if count == 1 else f"{count:,} times"
                yield self.finding(
                    f"the host reads a value back {times} that the forecast cannot know",
                    gpus=context.gpus(role),
                    num_bytes=None,
                    site=reads[0].site,
                    fix=Fix(text="take shapes and branches from data on the CPU", safety="needs-care"),
                )


def _line(site: Site) -> str:
    return source_of(site) or f"{site.module} {site.op}"
