"""Preflight real plans: the founding crash with its fix, plans that must be mended, plans that cannot be."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from dflash_doctor import doctor
from dflash_doctor.cli.app import run
from dflash_doctor.cli.options import exit_code
from dflash_doctor.doctor import PreflightOutcome, preflight, profile
from dflash_doctor.intake.cards import card_named
from dflash_doctor.intake.fingerprint import plan_fingerprint
from dflash_doctor.intake.models import resolve_model
from dflash_doctor.intake.plan_flags import PlanFlags, plan_from_flags
from dflash_doctor.records.finding import Finding
from dflash_doctor.records.plan import ProfileRequest, RunPlan
from dflash_doctor.records.report import MemoryReport
from dflash_doctor.units import format_bytes

GIB = 2**30
LOGITS = 65_536 * 248_320 * 2
TARGETS, DRAFTER = tuple(range(7)), (7,)


def plan_of(**flags: str) -> RunPlan:
    return plan_from_flags(PlanFlags(**{"gpus": "8", "gpu": "rtx-pro-6000", **flags})).plan  # type: ignore[arg-type]


def small_plan(memory: str, **flags: str) -> RunPlan:
    """Plan a small target and drafter on two cards of this size."""
    small = {
        "model": "qwen3-0.6b", "gpus": "2", "targets": "1", "gpu": "l4", "gpu_memory": memory,
        "draft_layers": "1", "token_budget": "16_384", "max_anchors": "64",
    }  # fmt: skip
    return plan_of(**{**small, **flags})


def findings(report: MemoryReport, code: str) -> list[Finding]:
    return [finding for finding in report.findings if finding.code == code]


# The founding crash


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("founding-crash")


@pytest.fixture(scope="module")
def mended(folder: Path) -> PreflightOutcome:
    crash = plan_of(preset="founding-crash")
    return preflight(crash, fix=True, fix_to=folder / "run.toml", search=False, report_dir=folder)


@pytest.fixture(scope="module")
def crash(mended: PreflightOutcome) -> MemoryReport:
    assert mended.before is not None
    return mended.before


def test_the_founding_crash_fits_on_none_of_its_gpus(crash: MemoryReport) -> None:
    assert crash.verdict == "wont-fit"
    assert [gpu.verdict for gpu in crash.gpus] == ["wont-fit"] * 8
    assert [gpu.role for gpu in crash.gpus] == ["target"] * 7 + ["drafter"]
    assert exit_code(crash.verdict, crash.findings, ()) == 1


def test_every_gpu_is_refused_what_the_true_run_was_refused(crash: MemoryReport) -> None:
    assert LOGITS == 32_547_799_040
    assert {gpu.failed_request_bytes for gpu in crash.gpus} == {LOGITS}
    for gpu in crash.gpus[:7]:
        assert gpu.reason.startswith("30.31 GiB cannot be had in lm_head (aten.mm.default, forward)")
    assert crash.gpus[7].reason.startswith("30.31 GiB cannot be had in the step (aten.roll.default, forward)")


def test_the_targets_logits_are_proved_unread(crash: MemoryReport) -> None:
    (found,) = findings(crash, "DF001")
    assert (found.bytes, found.gpus) == (LOGITS, TARGETS)
    assert (found.severity, found.confidence, found.module) == ("error", "proved", "lm_head")
    assert found.message == "lm_head output [65536, 248320] is never read: 30.31 GiB"
    assert found.source is not None
    assert "transformers/models/qwen3_5/modeling_qwen3_5.py:" in found.source


def test_the_drafters_rows_are_proved_mostly_unread(crash: MemoryReport) -> None:
    (found,) = findings(crash, "DF002")
    assert (found.bytes, found.gpus) == (LOGITS, DRAFTER)
    assert (found.severity, found.confidence) == ("error", "proved")
    assert ": 8,192 of 65,536 rows read, 12.5 %; 30.31 GiB, and 30.31 GiB again by roll" in found.message
    assert found.source is not None
    assert "dflash_train/baseline.py:" in found.source


def test_fragments_and_the_loss_in_one_piece_are_found_too(crash: MemoryReport) -> None:
    assert [found.gpus for found in findings(crash, "DF501")] == [TARGETS, DRAFTER]
    assert findings(crash, "DF003")
    assert {found.gpus for found in findings(crash, "DF301")} == {TARGETS, DRAFTER}
    assert not findings(crash, "DF902")


def test_the_fix_fits_without_any_waste(mended: PreflightOutcome) -> None:
    report = mended.report
    assert (report.plan_name, report.verdict) == ("founding-crash-tuned", "fits")
    assert exit_code(report.verdict, report.findings, ()) == 0
    assert {gpu.verdict for gpu in report.gpus} == {"fits"}
    assert not [found for found in report.findings if found.severity == "error"]
    assert (report.token_budget, report.max_anchors) == (65_536, 512)


def test_the_fix_tells_both_kinds_of_savings(mended: PreflightOutcome, crash: MemoryReport) -> None:
    saved = mended.report.savings
    assert saved is not None
    assert saved.never_made_bytes == 8 * LOGITS > 200 * GIB
    assert saved.peak_drop_bytes == tuple(
        old.peak_allocated_bytes - new.peak_allocated_bytes
        for old, new in zip(crash.gpus, mended.report.gpus, strict=True)
    )
    assert min(saved.peak_drop_bytes) > 25 * GIB


def test_a_halved_budget_stands_beside_the_fix(mended: PreflightOutcome, crash: MemoryReport) -> None:
    plain, tuned = crash.halved_budget, mended.report.halved_budget
    assert plain is not None
    assert tuned is not None
    assert plain.token_budget == tuned.token_budget == 32_768
    assert tuned.verdict == "fits"
    assert tuned.worst_headroom_bytes > plain.worst_headroom_bytes + 30 * GIB
    assert tuned.worst_headroom_bytes > min(gpu.headroom_bytes for gpu in mended.report.gpus)


def test_the_tuned_plan_says_what_it_avoids(mended: PreflightOutcome, crash: MemoryReport) -> None:
    assert mended.report.avoided[0].startswith("full-vocabulary logits would take 30.31 GiB a target")
    assert crash.avoided == ()


def test_the_tuned_plan_is_written_as_it_was_forecast(mended: PreflightOutcome, folder: Path) -> None:
    read = plan_from_flags(PlanFlags(plan=folder / "run.toml")).plan
    assert plan_fingerprint(read) == mended.report.plan_fingerprint
    assert (read.target_forward, read.target_rows, read.loss.projection) == ("body", 8_192, "selected")


def test_a_report_is_written_for_people_and_for_programs(mended: PreflightOutcome, folder: Path) -> None:
    names = ["run.toml", "founding-crash-tuned.json", "founding-crash-tuned.md"]
    assert list(mended.files) == [folder / name for name in names]
    assert sorted(path.name for path in folder.iterdir()) == sorted(names)
    shown = json.loads((folder / names[1]).read_text())
    assert shown.keys() >= {
        "schema_version", "verdict", "plan_fingerprint", "gpus", "findings", "largest_token_budget",
        "savings", "host", "versions", "seconds",
    }  # fmt: skip
    assert shown["gpus"][0].keys() >= {
        "index", "role", "peak_allocated_bytes", "peak_reserved_bytes", "outside_bytes", "capacity_bytes",
        "headroom_bytes", "by_category_bytes", "peak_at", "verdict",
    }  # fmt: skip
    assert shown["before"]["findings"][0].keys() >= {
        "code", "name", "severity", "confidence", "gpus", "bytes", "module", "op", "source", "message", "fix",
    }  # fmt: skip
    assert (shown["verdict"], shown["before"]["verdict"]) == ("fits", "wont-fit")
    assert shown["savings"]["never_made_bytes"] == 8 * LOGITS
    assert set(shown["versions"]) == {"torch", "transformers"}
    assert shown["seconds"] > 0
    text = (folder / names[2]).read_text()
    assert "founding-crash-tuned" in text
    assert "DF001" in text


# Plans that must be mended


def test_a_plan_that_fits_is_left_alone() -> None:
    plan = small_plan("12GiB")
    outcome = preflight(plan, fix=True, search=False)
    assert (outcome.report.verdict, outcome.plan, outcome.before) == ("fits", plan, None)
    assert outcome.report.savings is None
    assert doctor.NOTHING_TO_MEND in outcome.report.assumptions


def test_recomputation_is_tried_before_a_smaller_budget(tmp_path: Path) -> None:
    plan = small_plan("3300MiB", draft_layers="4")
    outcome = preflight(plan, fix=True, fix_to=tmp_path / "run.toml", search=False)
    written = plan_from_flags(PlanFlags(plan=tmp_path / "run.toml")).plan
    assert outcome.before is not None
    assert (outcome.before.verdict, outcome.report.verdict) == ("wont-fit", "fits")
    assert (written.recompute, written.token_budget) == ("on", 16_384)


def test_a_smaller_budget_is_the_last_resort(tmp_path: Path) -> None:
    plan = small_plan("2240MiB", max_anchors="8")
    outcome = preflight(plan, fix=True, fix_to=tmp_path / "run.toml", search=False)
    written = plan_from_flags(PlanFlags(plan=tmp_path / "run.toml")).plan
    assert outcome.before is not None
    assert (outcome.before.verdict, outcome.report.verdict) == ("wont-fit", "fits")
    assert [gpu.verdict for gpu in outcome.before.gpus] == ["wont-fit", "fits"]
    assert written.token_budget == outcome.report.token_budget
    assert 8_192 <= written.token_budget < 16_384
    assert written.recompute == "off"
    assert plan_fingerprint(written) == outcome.report.plan_fingerprint
    larger = replace(written, token_budget=written.token_budget + 1_024)
    assert preflight(larger, search=False).report.verdict != "fits"


def test_no_budget_is_smaller_than_the_longest_document(tmp_path: Path) -> None:
    plan = small_plan("2GiB", document_tokens="16_384")
    outcome = preflight(plan, fix=True, fix_to=tmp_path / "run.toml", search=False)
    assert outcome.report.verdict == "wont-fit"
    assert outcome.report.token_budget == 16_384
    assert plan_from_flags(PlanFlags(plan=tmp_path / "run.toml")).plan.document_tokens == 16_384


def test_the_largest_budget_and_the_grid_are_what_forecasts_say(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "SEARCH_SECONDS", 600.0)
    plan = small_plan("6GiB")
    report = preflight(plan).report
    largest = report.largest_token_budget
    assert largest is not None
    assert report.largest_token_budget_reason == "searched, rounded down to 1,024"
    at, beyond = (
        preflight(replace(plan, token_budget=b), search=False).report for b in (largest, largest + 1_024)
    )
    assert (at.verdict, beyond.verdict == "fits") == ("fits", False)
    cells = {(cell.token_budget, cell.max_anchors): cell for cell in report.what_if}
    assert set(cells) == {(b, a) for b in (8_192, 16_384, 32_768) for a in (32, 64, 128)}
    own = cells[16_384, 64]
    assert (own.verdict, own.worst_headroom_bytes) == (
        report.verdict,
        min(gpu.headroom_bytes for gpu in report.gpus),
    )


def test_a_late_search_says_so_and_leaves_the_grid_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "SEARCH_SECONDS", -1.0)
    monkeypatch.setattr(doctor, "GRID_SECONDS", -1.0)
    report = preflight(small_plan("6GiB")).report
    assert report.largest_token_budget == 16_384
    assert report.largest_token_budget_reason == "the search ran out of time: a larger one may fit"
    assert report.what_if == ()


# Plans that cannot be


@pytest.mark.parametrize("fix", [False, True])
def test_weights_that_exceed_the_card_ask_for_another_way(fix: bool) -> None:
    outcome = preflight(small_plan("1GiB"), fix=fix)
    report = outcome.report
    assert (report.verdict, report.largest_token_budget) == ("wont-fit", None)
    assert report.largest_token_budget_reason == (
        "weights and states alone exceed a card: shard, quantise or take a larger one"
    )
    assert (report.what_if, report.halved_budget) == ((), None)
    found = findings(report, "DF301")
    assert len(found) == 2
    for item in found:
        assert "weights and states alone take" in item.message
        assert item.fix is not None
        assert item.fix.text.startswith("shard the ")
        assert item.fix.text.endswith("a smaller token budget cannot help")
        assert item.fix.setting is None


STEP = """
import torch

def build(plan, device):
    layer = torch.nn.Linear(64, 64, device=device)
    rows = torch.ones(8, 64, device=device)

    def step():
        kept = rows[(layer(rows).sum(1) > 0)]
        return torch.zeros(len(kept), 1 << 20, device=device)

    return layer, step
"""


def test_a_step_of_unknown_shapes_could_not_be_determined(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "shapes_by_value.py").write_text(STEP)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    line = "preflight --model qwen3-0.6b --gpus 2 --targets 1 --gpu l4 --token-budget 4096 --max-anchors 64"
    arguments = [*line.split(), "--draft-step", "shapes_by_value:build", "--format", "json"]
    assert run(arguments) == 3
    shown = json.loads(capsys.readouterr().out)
    assert shown["verdict"] == "unknown"
    assert [gpu["verdict"] for gpu in shown["gpus"]] == ["fits", "unknown"]
    assert "shapes_by_value.py:9" in shown["gpus"][1]["reason"]
    assert (shown["largest_token_budget"], shown["largest_token_budget_reason"]) == (
        None,
        "the forecast of this plan is unknown",
    )
    assert [found["code"] for found in shown["findings"]] == ["DF902"]


# One model's step


def test_a_profile_tells_where_the_bytes_go() -> None:
    request = ProfileRequest(
        model=resolve_model("qwen3-0.6b", flag="--config"), seq=1_024, card=card_named("l4")
    )
    report = profile(request)
    logits = 1_024 * 151_936 * 2
    assert report.resident_bytes == 1_192_115_200
    assert report.top_allocations[0].category == "weights"
    assert logits in [allocation.bytes for allocation in report.top_allocations]
    assert report.peak_allocated_bytes == sum(report.by_category_bytes.values())
    assert (report.fits, report.capacity_bytes) == (True, card_named("l4").usable_bytes)
    assert report.peak_at.module == "lm_head"
    assert [found.code for found in report.findings] == ["DF001"]
    assert format_bytes(logits) in report.findings[0].message


def test_a_profile_without_a_card_fits_nowhere_and_anywhere() -> None:
    report = profile(ProfileRequest(model=resolve_model("qwen3-0.6b", flag="--config"), seq=64, mode="body"))
    assert (report.fits, report.capacity_bytes) == (None, None)
    assert report.findings == ()
