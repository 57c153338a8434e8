"""Search with probes of known answers."""

from collections.abc import Callable

import pytest

from dflash_doctor.analyze.search import LARGEST, STEP, Probe, largest_fitting
from dflash_doctor.records.report import Verdict

GIB = 2**30
FOUND = "searched, rounded down to 1,024"


class FakeForecast:
    """Answer probes from a function of spare bytes, and keep the budgets that were asked for."""

    def __init__(
        self,
        spare: Callable[[int], int],
        verdict: Callable[[int], Verdict] | None = None,
        most: Callable[[int], int] | None = None,
    ) -> None:
        self.spare, self.verdict, self.most = spare, verdict, most
        self.asked: list[int] = []

    def __call__(self, budget: int) -> Probe:
        self.asked.append(budget)
        spare = self.spare(budget)
        fits: Verdict = "fits" if spare >= 0 else "wont-fit"
        verdict = fits if self.verdict is None else self.verdict(budget)
        most = (self.most or self.spare)(budget)
        return Probe(token_budget=budget, verdict=verdict, spare_bytes=spare, most_spare_bytes=most)


def linear(last: int) -> Callable[[int], int]:
    """Spend 128 KiB a token on top of 50 GiB, until `last` tokens take all."""
    return lambda budget: (last - budget) * 128 * 1024


def stepped(last: int) -> Callable[[int], int]:
    """Have nothing to spare up to `last`, and be short by one GiB beyond."""
    return lambda budget: 0 if budget <= last else -GIB


def quadratic(last: int) -> Callable[[int], int]:
    """Spend with the square of the budget, as a dense mask does."""
    return lambda budget: (last * last - budget * budget) * 2


def rooted(last: int) -> Callable[[int], int]:
    """Spend ever less a token."""
    return lambda budget: int((last**0.5 - budget**0.5) * GIB)


def kinked(last: int) -> Callable[[int], int]:
    """Spend nearly nothing up to `last`, and very much beyond."""
    return lambda budget: (last - budget) * (1 if budget <= last else 10**9)


def hoarding(last: int) -> Callable[[int], int]:
    """Fit by giving cached memory back although an uncapped run would have less than nothing to spare."""
    return lambda budget: -GIB - budget * 1024


@pytest.mark.parametrize("shape", [linear, stepped, quadratic, rooted, kinked])
@pytest.mark.parametrize("last", [1_024, 9_000, 65_536, 65_537, 103_423, 999_999])
@pytest.mark.parametrize("start", [1_000, 65_536, 200_000])
def test_the_largest_multiple_that_fits_is_found(
    shape: Callable[[int], Callable[[int], int]], last: int, start: int
) -> None:
    probe = FakeForecast(shape(last))
    assert largest_fitting(probe, start, smallest=1) == (last // STEP * STEP, FOUND)
    assert all(budget % STEP == 0 for budget in probe.asked)
    assert len(probe.asked) <= 40


def test_cached_memory_that_can_be_given_back_takes_few_probes() -> None:
    probe = FakeForecast(
        linear(275_900), lambda budget: "fits" if budget <= 294_990 else "wont-fit", linear(295_500)
    )
    assert largest_fitting(probe, 65_536, smallest=8_192) == (294_912, FOUND)
    assert len(probe.asked) <= 8


@pytest.mark.parametrize("last", [9_000, 103_423])
def test_the_verdict_counts_where_the_spare_bytes_say_otherwise(last: int) -> None:
    probe = FakeForecast(hoarding(last), lambda budget: "fits" if budget <= last else "wont-fit")
    assert largest_fitting(probe, 65_536, smallest=1)[0] == last // STEP * STEP


def test_a_straight_line_takes_few_probes() -> None:
    probe = FakeForecast(linear(103_423))
    assert largest_fitting(probe, 65_536, smallest=8_192) == (102_400, FOUND)
    assert len(probe.asked) <= 5


def test_tight_is_not_enough() -> None:
    def verdict(budget: int) -> Verdict:
        return "fits" if budget <= 20_000 else "tight" if budget <= 40_000 else "wont-fit"

    probe = FakeForecast(linear(20_000), verdict)
    assert largest_fitting(probe, 30_000, smallest=1) == (19_456, FOUND)


def test_nothing_fits() -> None:
    probe = FakeForecast(linear(0))
    assert largest_fitting(probe, 65_536, smallest=8_192) == (None, "not even 8,192 tokens fit")
    assert probe.asked == [65_536, 32_768, 16_384, 8_192]


def test_no_budget_below_the_smallest_is_tried() -> None:
    probe = FakeForecast(linear(0))
    assert largest_fitting(probe, 30_000, smallest=8_200) == (None, "not even 9,216 tokens fit")
    assert min(probe.asked) == 9_216


def test_everything_fits_up_to_the_limit() -> None:
    probe = FakeForecast(lambda budget: GIB)
    assert largest_fitting(probe, 65_536, smallest=1) == (LARGEST, "searched up to 1,048,576 tokens")
    assert max(probe.asked) == LARGEST


def test_a_plan_beyond_the_limit_that_fits_is_its_own_answer() -> None:
    probe = FakeForecast(linear(10 * LARGEST))
    assert largest_fitting(probe, 3 * LARGEST, smallest=1)[0] == 3 * LARGEST


def test_an_unknown_forecast_ends_the_search() -> None:
    probe = FakeForecast(linear(100_000), lambda budget: "unknown" if budget > 70_000 else "fits")
    assert largest_fitting(probe, 65_536, smallest=1) == (None, "the forecast of this plan is unknown")


def test_a_late_search_gives_what_it_has() -> None:
    late = "the search ran out of time"
    fitting = largest_fitting(FakeForecast(linear(99_999)), 65_536, smallest=1, is_late=lambda: True)
    assert fitting == (65_536, f"{late}: a larger one may fit")
    failing = largest_fitting(FakeForecast(linear(9_999)), 65_536, smallest=1, is_late=lambda: True)
    assert failing == (None, late)


def test_a_late_search_asks_no_more() -> None:
    probe = FakeForecast(linear(99_999))
    largest_fitting(probe, 65_536, smallest=1, is_late=lambda: len(probe.asked) == 2)
    assert len(probe.asked) == 2
