"""Fire and silence the rules on what fits."""

from dflash_doctor.rules.context import RuleContext
from dflash_doctor.rules.placement import DeviceOverCapacity, ThinHeadroom
from tests.doctor.report_builder import GIB, gpu, plan
from tests.doctor.rules.test_vocabulary import check


def test_df301_fires_once_for_equal_gpus_of_a_role() -> None:
    reports = [gpu(i, activations=40 * GIB, reserved=118 * GIB, verdict="wont-fit") for i in range(7)]
    drafter = gpu(7, "drafter", activations=38 * GIB, verdict="wont-fit", failed=30 * GIB)
    target, draft = check(DeviceOverCapacity, RuleContext(gpu_reports=(*reports, drafter)))
    assert target.message == "the target needs 119.50 GiB of 94.97 GiB: over by 24.53 GiB"
    assert (target.gpus, target.severity, target.confidence) == (tuple(range(7)), "error", "likely")
    assert draft.message == "the drafter needs 92.50 GiB of 94.97 GiB: no block of 30.00 GiB can be had"
    assert draft.gpus == (7,)
    assert target.fix is not None
    assert target.fix.setting == "--token-budget"


def test_df301_never_advises_a_smaller_budget_where_weights_alone_exceed_the_card() -> None:
    report = gpu(resident=50 * GIB, capacity=40 * GIB, verdict="wont-fit")
    (found,) = check(DeviceOverCapacity, RuleContext(gpu_reports=(report,)))
    assert found.message == (
        "the target's weights and states alone take 50.00 GiB, beside 1.50 GiB outside PyTorch, "
        "of 40.00 GiB: over by 11.50 GiB"
    )
    assert found.fix is not None
    assert (found.fix.setting, found.fix.safety) == (None, "needs-care")
    assert found.fix.text.startswith("shard the model over several GPUs, quantise it, or take a larger card")


def test_df301_is_silent_where_it_fits() -> None:
    assert check(DeviceOverCapacity, RuleContext(gpu_reports=(gpu(), gpu(1, verdict="tight")))) == []


def test_df301_advises_a_drafter_fewer_layers_where_its_states_alone_exceed_the_card() -> None:
    report = gpu(7, "drafter", resident=50 * GIB, capacity=40 * GIB, verdict="wont-fit")
    (found,) = check(DeviceOverCapacity, RuleContext(gpu_reports=(report,)))
    assert found.fix is not None
    assert "--draft-layers" in found.fix.text
    assert "quantise" not in found.fix.text


def test_df302_fires_on_a_tight_gpu() -> None:
    tight = gpu(activations=38 * GIB, verdict="tight")
    (found,) = check(ThinHeadroom, RuleContext(gpu_reports=(tight,), plan=plan()))
    assert found.message == "the target has 2.47 GiB to spare, less than the margin of 3.80 GiB"
    assert found.severity == "warning"


def test_df302_is_silent_with_room_to_spare_and_where_it_does_not_fit() -> None:
    reports = (gpu(), gpu(1, activations=60 * GIB, verdict="wont-fit"))
    assert check(ThinHeadroom, RuleContext(gpu_reports=reports, plan=plan())) == []
