"""Fire and silence the rule on feature slots."""

from dflash_doctor.rules.context import RuleContext
from dflash_doctor.rules.pipeline import FeaturesInFlight
from tests.doctor.report_builder import GIB, gpu, plan
from tests.doctor.rules.test_vocabulary import check


def test_df401_fires_on_slots_beyond_a_tenth_of_the_card() -> None:
    report = gpu(7, "drafter", features=15 * GIB)
    (found,) = check(FeaturesInFlight, RuleContext(gpu_reports=(report,), plan=plan(channel_slots=4)))
    assert found.message == "features in flight, 4 slots in the plan, take 16 % of the card: 15.00 GiB"
    assert (found.severity, found.gpus, found.bytes) == ("warning", (7,), 15 * GIB)
    assert found.fix is not None
    assert found.fix.setting == "--channel-slots 2"
    (found,) = check(FeaturesInFlight, RuleContext(gpu_reports=(report,), plan=plan(channel_slots=1)))
    assert found.message == "features in flight, 1 slot in the plan, take 16 % of the card: 15.00 GiB"
    assert found.fix is not None
    assert found.fix.setting == "--token-budget"


def test_df401_is_silent_below_a_tenth() -> None:
    assert check(FeaturesInFlight, RuleContext(gpu_reports=(gpu(features=9 * GIB),), plan=plan())) == []
