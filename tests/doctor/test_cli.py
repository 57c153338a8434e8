import json
from pathlib import Path
from typing import Any

import pytest

from dflash_doctor import __version__
from dflash_doctor.cli.app import run
from dflash_doctor.cli.options import exit_code
from tests.doctor.fake_doctor import FakeDoctor, put, run_program, run_python
from tests.doctor.render.sample_reports import crash_report, fixed_report, profile_report

HEAVY = ("torch", "transformers", "pandas", "numpy", "huggingface_hub", "rich.markdown")


@pytest.fixture(autouse=True)
def _empty_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)


# What the program says of itself


def test_the_version_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["--version"]) == 0
    assert capsys.readouterr().out == f"dflash-doctor {__version__}\n"


def test_without_a_command_the_help_goes_to_stderr(capsys: pytest.CaptureFixture[str]) -> None:
    assert run([]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "preflight" in captured.err


@pytest.mark.parametrize("command", [[], ["preflight"], ["profile"], ["explain"], ["rules"]])
def test_help_imports_nothing_heavy(command: list[str]) -> None:
    code = (
        "import sys; from dflash_doctor.cli.app import run; "
        f"code = run({[*command, '--help']!r}); "
        f"found = [name for name in {HEAVY!r} if name in sys.modules]; "
        "sys.exit(f'imported {found}' if found else code)"
    )
    done = run_python(code)
    assert (done.returncode, done.stderr) == (0, "")


def test_help_keeps_to_60_columns() -> None:
    shown = run_program("preflight", "--help", COLUMNS="60").stdout
    assert max(map(len, shown.splitlines())) <= 60


@pytest.mark.parametrize(
    ("command", "flags"),
    [
        (
            "preflight",
            "plan preset token-budget gpus gpu-memory gpu targets drafters model draft-layers layer-ids "
            "block-size max-anchors dtype optimizer loss channel-slots target-rows document-tokens "
            "linear-attention recompute allocator margin fix fix-to target-step draft-step report-dir "
            "no-report no-search fail-on format engine",
        ),
        (
            "profile",
            "config mode batch seq dtype attn optimizer clip gradient-checkpointing linear-attention engine "
            "format gpu allocator fail-on",
        ),
    ],
)
def test_every_flag_is_there(command: str, flags: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run([command, "--help"]) == 0
    shown = capsys.readouterr().out
    assert [flag for flag in flags.split() if f"--{flag} " not in shown] == []


# What is asked of the doctor, and what is shown


def test_preflight_asks_for_the_founding_run(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    fake = FakeDoctor(fixed_report())
    put(monkeypatch, fake)
    assert run(["preflight", "--token-budget", "64Ki"]) == 0
    assert fake.asked["plan"].name == "founding-run"
    assert fake.asked["plan"].token_budget == 65_536
    assert (fake.asked["fix"], fake.asked["fix_to"], fake.asked["search"]) == (False, None, True)
    assert fake.asked["report_dir"] == Path("reports")
    assert Path("reports").is_dir()
    captured = capsys.readouterr()
    assert captured.err == "".join(f"note: {note}\n" for note in fake.asked["notes"])
    assert captured.out


def test_preflight_writes_nothing_where_told_so(monkeypatch: pytest.MonkeyPatch) -> None:
    fake = FakeDoctor(fixed_report())
    put(monkeypatch, fake)
    assert run(["preflight", "--no-report", "--no-search", "--fix-to", "out/run.toml", "--gpu", "h100"]) == 0
    assert fake.asked["report_dir"] is None
    assert (fake.asked["fix"], fake.asked["fix_to"], fake.asked["search"]) == (
        True,
        Path("out/run.toml"),
        False,
    )
    assert not Path("reports").exists()


@pytest.mark.parametrize("format", ["text", "md", "json"])
def test_a_plan_that_does_not_fit_ends_with_1(
    monkeypatch: pytest.MonkeyPatch, format: str, capsys: pytest.CaptureFixture[str]
) -> None:
    put(monkeypatch, FakeDoctor(crash_report()))
    assert run(["preflight", "--preset", "founding-crash", "--format", format]) == 1
    assert "DF001" in capsys.readouterr().out


def test_json_is_alone_on_stdout(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    put(monkeypatch, FakeDoctor(fixed_report(), crash_report()))
    assert run(["preflight", "--fix", "--format", "json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert (shown["verdict"], shown["before"]["verdict"]) == ("fits", "wont-fit")


def test_a_report_in_a_pipe_has_no_colour(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    put(monkeypatch, FakeDoctor(crash_report()))
    run(["preflight"])
    assert "\x1b" not in capsys.readouterr().out


@pytest.mark.parametrize(
    ("verdict", "fail_on", "code"),
    [
        ("fits", (), 0),
        ("tight", (), 0),
        ("wont-fit", (), 1),
        ("unknown", (), 3),
        ("fits", ("DF001",), 1),
        ("fits", ("DF0",), 1),
        ("fits", ("DF104",), 0),
        ("fits", ("error",), 1),
        ("unknown", ("warning",), 1),
    ],
)
def test_exit_codes_follow_verdict_and_findings(verdict: Any, fail_on: tuple[str, ...], code: int) -> None:
    assert exit_code(verdict, crash_report().findings, fail_on) == code


def test_a_severity_takes_in_what_is_worse() -> None:
    warnings = [finding for finding in crash_report().findings if finding.severity == "warning"]
    assert exit_code("fits", warnings, ("error",)) == 0
    assert exit_code("fits", warnings, ("info",)) == (1 if warnings else 0)


def test_profile_asks_for_one_step(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    fake = FakeDoctor(fixed_report())
    put(monkeypatch, fake)
    line = (
        "profile --config qwen3.6-27b --mode train --batch 2 --seq 64Ki --dtype bf16 --attn eager "
        "--optimizer adamw-fused --clip 1.0 --gradient-checkpointing --linear-attention fallback --gpu h200 "
        "--allocator expandable_segments:True"
    )
    assert run(line.split()) == 0
    asked = fake.asked["request"]
    assert (asked.model.name, asked.mode, asked.batch, asked.seq) == ("qwen3.6-27b", "train", 2, 65_536)
    assert (asked.dtype, asked.attention, asked.optimizer, asked.clip) == (
        "bfloat16",
        "eager",
        "adamw-fused",
        1.0,
    )
    assert (asked.gradient_checkpointing, asked.linear_attention) == (True, "fallback")
    assert (asked.card.name, asked.allocator) == ("h200", "expandable_segments:True")
    assert capsys.readouterr().out


@pytest.mark.parametrize(("more", "code"), [((), 0), (("--fail-on", "info"), 1)])
def test_profile_fails_on_findings_only_where_asked(
    monkeypatch: pytest.MonkeyPatch, more: tuple[str, ...], code: int
) -> None:
    put(monkeypatch, FakeDoctor(fixed_report()))
    expected = code if profile_report().findings else 0
    assert run(["profile", "--config", "qwen3-8b", *more]) == expected


def test_profile_takes_the_defaults_of_a_bare_model_type_aloud(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    fake = FakeDoctor(fixed_report())
    put(monkeypatch, fake)
    Path("config.json").write_text('{"model_type": "gpt2"}')
    assert run(["profile", "--config", "config.json"]) == 0
    assert fake.asked["request"].model.config == {"model_type": "gpt2"}
    assert "the defaults of gpt2 are taken" in capsys.readouterr().err


@pytest.mark.parametrize(("mode", "told"), [("forward", 3), ("train", 0)])
def test_flags_of_profile_that_play_no_part_are_told(
    mode: str, told: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    put(monkeypatch, FakeDoctor(fixed_report()))
    flags = f"--mode {mode} --clip 1 --gradient-checkpointing --optimizer adamw"
    assert run(["profile", "--config", "qwen3-8b", *flags.split()]) == 0
    assert capsys.readouterr().err.count("plays no part") == told


# Rules


def test_rules_are_listed_and_explained(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["rules"]) == 0
    assert "DF001" in capsys.readouterr().out
    assert run(["explain", "df001"]) == 0
    assert "DF001 unused-full-vocab-logits" in capsys.readouterr().out


def test_an_unknown_rule_suggests_one(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["explain", "unused-vocab-logits"]) == 2
    assert "did you mean unused-full-vocab-logits?" in capsys.readouterr().err


def test_a_stdout_that_knows_only_ascii_gets_question_marks() -> None:
    code = (
        "import dflash_doctor.cli.program as program; from dflash_doctor.cli import main; "
        "program.run_app = lambda *rest: print('2 \\u00d7 80 GiB') or 0; main()"
    )
    done = run_python(code, PYTHONIOENCODING="ascii")
    assert (done.returncode, done.stdout, done.stderr) == (0, "2 ? 80 GiB\n", "")
