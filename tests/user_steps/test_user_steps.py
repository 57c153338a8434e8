"""Trace steps that are not ours: a naive pipeline that ran out of memory, by its adapter `doctor_steps`."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from dflash_doctor.analyze.replay import replay
from dflash_doctor.doctor import preflight
from dflash_doctor.engines.roles import trace_role
from dflash_doctor.errors import DoctorError
from dflash_doctor.intake.plan_flags import PlanFlags, plan_from_flags
from dflash_doctor.records.finding import Finding
from dflash_doctor.records.plan import RunPlan
from dflash_doctor.records.report import MemoryReport

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
LOGITS = 65_536 * 248_320 * 2
GIB = 2**30
# What the true run printed: bytes of the device, 1.5 GiB of which PyTorch's allocator does not have.
DEVICE, OUTSIDE = 101_973_261_025, 3 * 2**29
FREE_GIB = {"target": 7.06, "drafter": 17.24}


def line_of(text: str) -> int:
    lines = (HERE / "dflash_model.py").read_text().splitlines()
    return next(number for number, line in enumerate(lines, 1) if text in line)


@pytest.fixture(scope="module")
def plan() -> Iterator[RunPlan]:
    flags = PlanFlags(
        preset="founding-crash",
        gpus="8",
        gpu="rtx-pro-6000",
        target_step="doctor_steps:target_step",
        draft_step="doctor_steps:draft_step",
    )
    sys.path.insert(0, str(HERE))
    yield plan_from_flags(flags).plan
    sys.path.remove(str(HERE))


@pytest.fixture(scope="module")
def report(plan: RunPlan) -> MemoryReport:
    return preflight(plan, search=False).report


def finding(report: MemoryReport, code: str) -> Finding:
    (found,) = [finding for finding in report.findings if finding.code == code]
    return found


def test_the_naive_pipeline_fits_no_gpu(report: MemoryReport) -> None:
    assert report.verdict == "wont-fit"
    assert [gpu.verdict for gpu in report.gpus] == ["wont-fit"] * 8
    assert {gpu.failed_request_bytes for gpu in report.gpus} == {LOGITS}
    assert "lm_head (aten.mm.default, forward)" in report.gpus[0].reason
    assert "Drafter (aten.roll.default, forward)" in report.gpus[7].reason


def test_logits_that_the_targets_throw_away_are_proved(report: MemoryReport) -> None:
    found = finding(report, "DF001")
    assert (found.bytes, found.gpus, found.confidence) == (LOGITS, tuple(range(7)), "proved")
    assert found.module == "lm_head"
    assert found.source is not None
    assert "modeling_qwen3_5.py:" in found.source
    assert found.fix is not None
    assert "train_dflash_pipeline.py:" in found.fix.text


def test_rows_that_the_drafter_never_reads_are_proved(report: MemoryReport) -> None:
    found = finding(report, "DF002")
    assert (found.bytes, found.gpus, found.confidence) == (LOGITS, (7,), "proved")
    assert (found.module, found.op) == ("verifier_lm_head", "aten.mm.default")
    assert found.message == (
        "verifier_lm_head output [65536, 248320]: 8,192 of 65,536 rows read, 12.5 %; "
        "30.31 GiB, and 30.31 GiB again by roll"
    )
    assert found.source is not None
    assert found.source.endswith(f"dflash_model.py:{line_of('self.verifier_lm_head(self.verifier_norm(')}")
    assert found.fix is not None
    assert "at index - 1 because of the roll" in found.fix.text


def test_what_the_steps_hold_is_told_by_its_kind(report: MemoryReport) -> None:
    drafter = report.gpus[7].resident_bytes
    assert drafter["optimizer_state"] >= 2 * drafter["master_weights"] > 12 * GIB
    assert report.gpus[0].resident_bytes["weights"] == 53_792_049_152


@pytest.mark.parametrize(
    ("role", "allocated_gib", "op", "line"),
    [("target", 58.26, "mm", None), ("drafter", 75.01, "roll", "torch.roll(")],
)
def test_the_first_refusal_is_that_of_the_true_run(
    plan: RunPlan, role: str, allocated_gib: float, op: str, line: str | None
) -> None:
    trace = trace_role(plan, role)  # type: ignore[arg-type]
    played = replay(trace, cap=DEVICE - OUTSIDE)
    assert played.failed_request_bytes == LOGITS
    assert round(played.allocated_bytes / GIB, 2) == allocated_gib
    assert (DEVICE - OUTSIDE - played.reserved_bytes) / GIB == pytest.approx(FREE_GIB[role], abs=0.03)
    assert played.failed_at is not None
    site = trace.storages[trace.events[played.failed_at] - 1].site
    assert site.op == f"aten.{op}.default"
    if line is not None:
        assert (Path(site.stack[0].file).name, site.stack[0].line) == ("dflash_model.py", line_of(line))


def run_doctor(command: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """Run the program as its console script does: with no current folder on Python's path."""
    return subprocess.run(
        [sys.executable, "-c", "from dflash_doctor.cli import main; main()", *command.split()],
        capture_output=True,
        text=True,
        check=False,
        cwd=folder,
        env={**os.environ, "PYTHONSAFEPATH": "1", "PYTHONPATH": str(ROOT)},
    )


def test_the_flags_take_steps_of_this_folder() -> None:
    done = run_doctor(
        "preflight --preset founding-crash --gpus 8 --gpu rtx-pro-6000 --token-budget 16Ki --max-anchors 128 "
        "--target-step doctor_steps:target_step --draft-step doctor_steps:draft_step "
        "--no-search --no-report --format json --fail-on DF001",
        HERE,
    )
    assert done.returncode == 1, done.stderr
    found = {item["code"]: item for item in json.loads(done.stdout)["findings"]}
    assert (found["DF001"]["bytes"], found["DF002"]["bytes"]) == (LOGITS // 4, LOGITS // 4)
    assert "2,048 of 16,384 rows read, 12.5 %" in found["DF002"]["message"]
    assert "dflash_model.py" in found["DF002"]["source"]


def test_a_step_that_is_not_there_is_bad_input(tmp_path: Path) -> None:
    done = run_doctor("preflight --no-report --draft-step missing_module:step", tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert "cannot load the step 'missing_module:step'" in done.stderr
    assert "--draft-step takes module:function" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_fix_is_the_trainers_own_steps(plan: RunPlan) -> None:
    flags = PlanFlags(
        preset="founding-crash", model="qwen3-0.6b", gpus="8", gpu="rtx-pro-6000", token_budget="8Ki"
    )
    small = replace(plan_from_flags(flags).plan, draft_step=plan.draft_step, max_anchors=64)
    outcome = preflight(small, fix=True, search=False)
    assert outcome.before is not None
    assert outcome.report.verdict == "fits"
    assert {finding.code for finding in outcome.before.findings} >= {"DF001", "DF002"}
    assert not {finding.code for finding in outcome.report.findings} & {"DF001", "DF002"}


@pytest.mark.parametrize("role", ["target", "drafter"])
def test_a_step_that_cannot_run_names_its_role(plan: RunPlan, role: str) -> None:
    wrong = replace(plan, draft_step="dflash_model:Drafter", target_step="dflash_model:anchored_indices")
    with pytest.raises(DoctorError) as raised:
        trace_role(wrong, role)  # type: ignore[arg-type]
    assert raised.value.exit_code == 3
    assert f"the {role} step dflash_model:" in raised.value.message
