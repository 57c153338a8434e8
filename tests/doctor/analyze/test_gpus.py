"""Report GPUs from hand-made traces, to the byte."""

from dataclasses import replace

from dflash_doctor.analyze.fit import Fit, judge
from dflash_doctor.analyze.gpus import gpu_report, idle_report, load_peak, peak_at, sum_by_category
from dflash_doctor.records.report import GpuReport, PeakAt
from dflash_doctor.records.trace import AllocationTrace, Site, SourceLine
from tests.doctor.report_builder import band, card
from tests.doctor.trace_builder import TraceBuilder

MIB = 2**20
CAPACITY = 1_000 * MIB


def drafter() -> AllocationTrace:
    """Load 100 MiB of weights through a copy of 150, then hold features and 30 MiB of activations."""
    trace = TraceBuilder(role="drafter")
    trace.phases = [("load", 0)]
    copy = trace.tensor(150 * MIB // 4, dtype="float32", category="temporaries")
    trace.tensor(100 * MIB // 2)
    trace.free(copy)
    trace.tensor(40 * MIB // 2, category="features")
    trace.tensor(10 * MIB // 4, dtype="float32", category="master_weights")
    trace.tensor(20 * MIB // 4, dtype="float32", category="optimizer_state")
    trace.phase("forward")
    trace.tensor(1, dtype="int64", category="inputs")
    gradients = trace.tensor(100 * MIB // 2, category="gradients", born_at=0)
    hidden = trace.op("mm.default", out=(5 * MIB // 2,), module="layers.0.mlp", line=7)
    logits = trace.op("mm.default", out=(25 * MIB // 2,), module="lm_head", line=8)
    trace.free(gradients, logits, hidden)
    return trace.build()


def report_of(trace: AllocationTrace) -> tuple[GpuReport, Fit]:
    outside = band(9 * MIB)
    fit = judge(trace, capacity=CAPACITY, outside=outside, margin=0.04, allocator="")
    return gpu_report(3, "drafter", trace, fit, card(CAPACITY), outside), fit


def test_a_gpu_is_reported_by_what_is_alive_at_its_peak() -> None:
    report, fit = report_of(drafter())
    assert (report.index, report.role, report.verdict, report.reason) == (3, "drafter", "fits", "")
    assert report.resident_bytes == {
        "weights": 100 * MIB,
        "optimizer_state": 20 * MIB,
        "master_weights": 10 * MIB,
        "inputs": 512,
    }
    assert report.features_bytes == 40 * MIB
    assert report.activation_peak_bytes == 130 * MIB
    assert report.by_category_bytes == {
        **report.resident_bytes,
        "features": 40 * MIB,
        "gradients": 100 * MIB,
        "activations": 30 * MIB,
    }
    assert report.peak_allocated_bytes == 300 * MIB + 512 == sum(report.by_category_bytes.values())
    assert report.peak_reserved_bytes == fit.uncapped.peak_reserved_bytes
    assert report.headroom_bytes == CAPACITY - 9 * MIB - report.peak_reserved_bytes
    assert (report.capacity_bytes, report.outside.likely) == (CAPACITY, 9 * MIB)
    assert report.load_peak_bytes == 250 * MIB
    assert report.peak_at == PeakAt(
        module="lm_head", op="aten.mm.default", phase="forward", source="model.py:8"
    )
    assert report.failed_request_bytes is None


def test_categories_are_summed_by_blocks_largest_first() -> None:
    trace = TraceBuilder()
    trace.tensor(1, dtype="float32", category="buffers")
    trace.tensor(513, dtype="bool", category="inputs")
    trace.tensor(0, category="gradients")
    sums = sum_by_category(trace.build(), (0, 1, 2))
    assert list(sums.items()) == [("inputs", 1024), ("buffers", 512)]


def test_the_loading_peak_is_that_of_the_load_phase_alone() -> None:
    assert load_peak(drafter()) == 250 * MIB
    trace = TraceBuilder()
    trace.tensor(100 * MIB)
    assert load_peak(trace.build()) == 0


def test_a_peak_is_named_by_the_innermost_line() -> None:
    trace = TraceBuilder()
    trace.op("mm.default", out=(MIB,), module="layers.0", line=7)
    built = trace.build()
    stack = tuple(SourceLine(file=name, line=3, function="f") for name in ("inner.py", "outer.py"))
    site = Site(module="m", op="aten.add.Tensor", phase="backward", stack=stack)
    inner = replace(built, storages=(replace(built.storages[0], site=site),))
    assert peak_at(built, 0) == PeakAt(
        module="layers.0", op="aten.mm.default", phase="forward", source="model.py:7"
    )
    assert peak_at(inner, 0) == PeakAt(
        module="m", op="aten.add.Tensor", phase="backward", source="inner.py:3"
    )
    assert peak_at(replace(built, events=()), 0) == PeakAt(module="", op="", phase="load", source=None)


def test_a_gpu_without_a_role_holds_nothing() -> None:
    report = idle_report(5, card(CAPACITY), band(9 * MIB))
    assert (report.index, report.role, report.verdict) == (5, "idle", "fits")
    assert report.reason == "no role is placed here"
    assert report.peak_allocated_bytes == report.peak_reserved_bytes == report.load_peak_bytes == 0
    assert report.headroom_bytes == CAPACITY - report.outside.likely
