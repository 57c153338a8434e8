"""Fire and silence the rule on fragmentation."""

from dflash_doctor.rules.allocator import FragmentationGap
from dflash_doctor.rules.context import RuleContext
from tests.doctor.report_builder import GIB, gpu, plan
from tests.doctor.rules.test_vocabulary import check


def test_df501_fires_on_a_gap_and_advises_expandable_segments_only_where_they_are_off() -> None:
    report = gpu(reserved=80 * GIB)
    (found,) = check(FragmentationGap, RuleContext(gpu_reports=(report,), plan=plan(allocator="")))
    assert found.message == "reserved 80.00 GiB for a peak of 62.00 GiB: gap of 18.00 GiB"
    assert (found.severity, found.bytes) == ("warning", 18 * GIB)
    assert found.fix is not None
    assert found.fix.text == "set PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True"
    (found,) = check(FragmentationGap, RuleContext(gpu_reports=(report,), plan=plan()))
    assert found.fix is not None
    assert "expandable" not in found.fix.text


def test_df501_is_silent_on_a_small_gap() -> None:
    assert check(FragmentationGap, RuleContext(gpu_reports=(gpu(reserved=64 * GIB),), plan=plan())) == []
