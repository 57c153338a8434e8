"""Find the largest token budget that fits, by the secant of the headroom."""

from collections.abc import Callable
from dataclasses import dataclass

from dflash_doctor.records.report import Verdict

STEP = 1_024
"""Budgets are rounded down to multiples of this."""
LARGEST = 1 << 20
"""No budget beyond this many tokens is looked at."""
MAX_PROBES = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Probe:
    """What one budget came to: the worst verdict, and the least bytes to spare above the margin."""

    token_budget: int
    verdict: Verdict
    spare_bytes: int

    @property
    def fits(self) -> bool:
        """Say whether the run may start; tight is allowed."""
        return self.verdict == "fits"


def largest_fitting(
    probe: Callable[[int], Probe], start: int, *, smallest: int, is_late: Callable[[], bool] = lambda: False
) -> tuple[int | None, str]:
    """Find the largest multiple of 1,024 tokens whose verdict is `fits`.

    `probe` is asked a few times, and no more once `is_late`; `smallest` is the least budget that makes a
    step at all. Returns the budget and how it was found, or None with the reason.
    """
    low: Probe | None = None
    high: Probe | None = None
    budget = max(start // STEP * STEP, STEP)
    for _ in range(MAX_PROBES):
        found = probe(budget)
        if found.verdict == "unknown":
            return None, "the forecast of this plan is unknown"
        low, high = (found, high) if found.fits else (low, found)
        if low is not None and high is not None and high.token_budget - low.token_budget <= STEP:
            break
        if low is not None and low.token_budget >= LARGEST:
            return LARGEST, f"searched up to {LARGEST:,} tokens"
        if high is not None and high.token_budget <= max(smallest, STEP):
            return None, f"not even {high.token_budget:,} tokens fit"
        if is_late():
            found_text = "the search ran out of time: a larger one may fit"
            return (low.token_budget, found_text) if low is not None else (None, "the search ran out of time")
        budget = _next(low, high, smallest)
    if low is None:
        return None, "no budget that fits was found"
    return low.token_budget, "searched, rounded down to 1,024"


def _next(low: Probe | None, high: Probe | None, smallest: int) -> int:
    floor = -(-max(smallest, STEP) // STEP) * STEP
    if low is None and high is not None:
        return max(high.token_budget // 2 // STEP * STEP, floor)
    if high is None and low is not None:
        return min(low.token_budget * 2, LARGEST)
    if low is None or high is None:
        raise ValueError("a search needs one probe")
    span = high.token_budget - low.token_budget
    fall = low.spare_bytes - high.spare_bytes
    share = low.spare_bytes / fall if fall > 0 else 0.5
    guess = low.token_budget + int(span * min(max(share, 0.02), 0.98)) // STEP * STEP
    return min(max(guess, low.token_budget + STEP), high.token_budget - STEP)
