"""Find the largest token budget that fits, by the secant of the headroom."""

from collections.abc import Callable
from dataclasses import dataclass

from dflash_doctor.records.report import Verdict

STEP = 1_024
"""Budgets are rounded down to multiples of this."""
LARGEST = 1 << 20
"""No budget beyond this many tokens is looked at."""
MAX_PROBES = 40
"""Halving takes ten probes between the limits; every third probe halves where the slope misleads."""
SLOPES = (2, 3)
"""Numbers of fitting budgets after which the slope is followed upwards; otherwise the budget doubles."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Probe:
    """What one budget came to: the worst verdict, and the least bytes to spare above the margin.

    `spare_bytes` counts all that an uncapped run would reserve, so that what is not negative is sure to fit;
    `most_spare_bytes` counts allocated bytes alone, so that what is negative cannot fit.
    """

    token_budget: int
    verdict: Verdict
    spare_bytes: int
    most_spare_bytes: int

    @property
    def fits(self) -> bool:
        """Say whether the run fits with its margin; tight is not enough."""
        return self.verdict == "fits"


def largest_fitting(
    probe: Callable[[int], Probe], start: int, *, smallest: int, is_late: Callable[[], bool] = lambda: False
) -> tuple[int | None, str]:
    """Find the largest multiple of 1,024 tokens whose verdict is `fits`.

    `probe` is asked a few times, and no more once `is_late`; `smallest` is the least budget that makes a
    step at all. Returns the budget and how it was found, or None with the reason.
    """
    fitting: list[Probe] = []
    high: Probe | None = None
    spans: list[int] = []
    floor = -(-max(smallest, STEP) // STEP) * STEP
    budget = max(start // STEP * STEP, STEP)
    limit = max(budget, LARGEST)
    for _ in range(MAX_PROBES):
        found = probe(budget)
        if found.verdict == "unknown":
            return None, "the forecast of this plan is unknown"
        if found.fits:
            fitting.append(found)
        else:
            high = found
        if fitting and high is not None:
            spans.append(high.token_budget - fitting[-1].token_budget)
            if spans[-1] <= STEP:
                return fitting[-1].token_budget, "searched, rounded down to 1,024"
        if fitting and fitting[-1].token_budget >= limit:
            return limit, f"searched up to {limit:,} tokens"
        if high is not None and high.token_budget <= floor:
            return None, f"not even {high.token_budget:,} tokens fit"
        if is_late():
            break
        budget = _next(fitting, high, floor, limit, is_slow=len(spans) > 2 and spans[-1] * 2 > spans[-3])
    if fitting:
        return fitting[-1].token_budget, "the search ran out of time: a larger one may fit"
    return None, "the search ran out of time"


def _next(fitting: list[Probe], high: Probe | None, floor: int, limit: int, *, is_slow: bool) -> int:
    """Choose the next budget: along the slope seen, or by halves and doubles where that gets nowhere."""
    if not fitting and high is not None:
        return max(high.token_budget // 2 // STEP * STEP, floor)
    low = fitting[-1]
    if high is None:
        if len(fitting) in SLOPES:
            return min(max(_where_spare_ends(fitting[-2], low), low.token_budget + STEP), limit)
        return min(low.token_budget * 2, limit)
    middle = (low.token_budget + high.token_budget) // 2 // STEP * STEP
    guess = _where_spare_ends(low, high)
    if is_slow or guess >= high.token_budget:
        guess = middle
    return min(max(guess, low.token_budget + STEP), high.token_budget - STEP)


def _where_spare_ends(one: Probe, other: Probe) -> int:
    """Follow the line through two probes to no bytes to spare, rounded down.

    Beyond where all fits for sure, the allocated bytes are followed instead.
    """
    spare, other_spare = one.spare_bytes, other.spare_bytes
    if spare < 0:
        spare, other_spare = one.most_spare_bytes, other.most_spare_bytes
    if spare <= other_spare:
        return other.token_budget * 2
    span = other.token_budget - one.token_budget
    return (one.token_budget + spare * span // (spare - other_spare)) // STEP * STEP
