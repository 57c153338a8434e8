"""Every kind of bad input: a clear message, the right exit code, no traceback, before anything is traced."""

import json
from pathlib import Path
from types import SimpleNamespace

import pytest

from dflash_doctor.cli.app import run
from dflash_doctor.errors import DoctorError
from tests.doctor.fake_doctor import put, put_untraceable, run_program, run_python


@pytest.fixture(autouse=True)
def _untraceable(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    put_untraceable(monkeypatch)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("--token-budget 0", "error: --token-budget: 0 is too small; the least is 1"),
        ("--token-budget -1", "error: --token-budget: -1 is too small; the least is 1"),
        (
            "--token-budget 1e12",
            "error: --token-budget: 1e12 is 1,000,000,000,000, too large; the most is 2,147,483,647",
        ),
        ("--token-budget 64kB", "error: --token-budget: '64kB' is not a count"),
        ("--layer-ids 1,16,64", "error: --layer-ids: 64 out of range: qwen3.6-27b has 64 layers, 0 to 63"),
        ("--targets 8 --gpus 8", "error: --targets: 8 targets and 1 drafter need 9 GPUs, there are 8"),
        ("--gpu t4", "error: --dtype: t4 has no bfloat16: that needs compute capability 8.0, it has 7.5"),
        ("--dtype fp4", "error: --dtype: 'fp4' is not known"),
        ("--model qwen3-8", "error: --model: there is no model preset 'qwen3-8'; did you mean 'qwen3-8b'?"),
        ("--plan nowhere.toml", "error: --plan: there is no file nowhere.toml"),
        ("--fail-on DF999", "error: --fail-on: 'DF999' is neither a code nor a severity"),
        (
            "--report-dir blocked/reports",
            "error: --report-dir: nothing can be written in blocked/reports: Not a directory",
        ),
        ("--fix-to blocked/run.toml", "error: --fix-to: blocked/run.toml cannot be written: "),
        ("--token-budgt 1", "error: No such option"),
        ("--engine null", "error: Invalid value for '--engine'"),
        ("surplus", "error: Got unexpected extra argument"),
    ],
)
def test_bad_input_is_refused_before_anything_is_traced(
    arguments: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("blocked").touch()
    assert run(["preflight", *arguments.split()]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert message in captured.err
    assert "Traceback" not in captured.err


def test_an_unknown_model_id_without_network_is_refused(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dflash_doctor.intake.hub._reachable", lambda endpoint: False)
    assert run(["preflight", "--model", "nobody/nothing-at-all"]) == 2
    assert "the hub cannot be reached" in capsys.readouterr().err


@pytest.mark.parametrize("command", [["preflight", "--model"], ["profile", "--config"]])
def test_a_config_without_vocab_size_is_refused(
    command: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    Path("config.json").write_text('{"model_type": "qwen3", "hidden_size": 64, "num_hidden_layers": 9}')
    assert run([*command, "config.json"]) == 2
    assert "has no vocab_size" in capsys.readouterr().err


def test_five_mistakes_of_a_plan_file_are_shown_at_once(capsys: pytest.CaptureFixture[str]) -> None:
    Path("run.toml").write_text(
        '[model]\npreset = "qwen3-8b"\n[batch]\ntoken_budgt = 1\nmax_anchors = "x"\n'
        '[memory]\ndtype = "bf17"\nchannel_slots = 0\n[placement]\ngpu = "h1000"\n'
    )
    assert run(["preflight", "--plan", "run.toml"]) == 2
    shown = capsys.readouterr().err
    assert shown.startswith("error: run.toml has 5 mistakes:\n")
    assert [line for line in (4, 5, 7, 8, 10) if f"  run.toml:{line}: " not in shown] == []


@pytest.mark.parametrize(
    ("arguments", "message", "code"),
    [
        ("preflight --token-budget 0 --format json", "--token-budget: 0 is too small; the least is 1", 2),
        ("preflight --format=json --surplus", "No such option: --surplus", 2),
        ("profile --format json", "Missing option '--config'.", 2),
        ("profile --config qwen3-8b --format json", "internal error: AssertionError: traced", 3),
    ],
)
def test_errors_are_json_where_the_report_would_be(
    arguments: str, message: str, code: int, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(arguments.split()) == code
    shown = json.loads(capsys.readouterr().out)
    assert shown["schema_version"] == 1
    assert shown["error"]["message"].startswith(message)
    assert (shown["error"]["exit_code"], set(shown["error"])) == (code, {"message", "hint", "exit_code"})


def test_an_unforeseen_error_is_undetermined_and_shows_its_traceback(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert run(["preflight"]) == 3
    shown = capsys.readouterr().err
    assert "Traceback" in shown
    assert "error: internal error: AssertionError: traced" in shown


def test_an_error_of_the_doctor_keeps_its_exit_code(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def preflight(*args: object, **rest: object) -> None:
        raise DoctorError("too deep", hint="surface\nbreathe", exit_code=3)

    put(monkeypatch, SimpleNamespace(preflight=preflight))
    assert run(["preflight"]) == 3
    assert capsys.readouterr().err.endswith("error: too deep\nhint: surface\nhint: breathe\n")


def test_an_interrupt_ends_without_a_traceback(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def preflight(*args: object, **rest: object) -> None:
        raise KeyboardInterrupt

    put(monkeypatch, SimpleNamespace(preflight=preflight))
    assert run(["preflight"]) == 130
    assert "Traceback" not in capsys.readouterr().err


def test_a_pipe_that_closes_is_quiet() -> None:
    code = (
        "import os, sys; from dflash_doctor.cli import main; "
        "read, write = os.pipe(); os.dup2(write, 1); os.close(read); os.close(write); "
        "sys.argv = ['dflash-doctor', 'rules']; main()"
    )
    done = run_python(code)
    assert (done.returncode, done.stderr) == (141, "")


@pytest.mark.parametrize("arguments", ["rules", "--help", "preflight --token-budget 0 --format json"])
@pytest.mark.parametrize("stdout", ["/dev/full", None])
def test_a_stdout_that_takes_nothing_is_an_error(arguments: str, stdout: str | None) -> None:
    redirect = f"os.dup2(os.open({stdout!r}, os.O_WRONLY), 1)" if stdout else "sys.stdout = None"
    code = (
        f"import os, sys; from dflash_doctor.cli import main; {redirect}; "
        f"sys.argv = ['dflash-doctor', *{arguments.split()!r}]; main()"
    )
    done = run_python(code)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("error: cannot write the report: ")
    assert "Traceback" not in done.stderr


def test_an_error_in_a_closed_pipe_is_quiet() -> None:
    code = (
        "import os, sys; from dflash_doctor.cli import main; "
        "read, write = os.pipe(); os.dup2(write, 2); os.close(read); os.close(write); "
        "sys.argv = ['dflash-doctor', 'preflight', '--token-budget', '0']; main()"
    )
    assert run_python(code).returncode == 141


def test_what_a_step_prints_stays_off_stdout(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def preflight(*args: object, **rest: object) -> None:
        print("from a step")
        raise DoctorError("enough")

    put(monkeypatch, SimpleNamespace(preflight=preflight))
    assert run(["preflight"]) == 2
    captured = capsys.readouterr()
    assert (captured.out, "from a step" in captured.err) == ("", True)


def test_a_file_that_is_there_is_not_mended_over(capsys: pytest.CaptureFixture[str]) -> None:
    Path("there.toml").touch()
    assert run(["preflight", "--fix-to", "there.toml"]) == 2
    assert "it exists; name another file or remove it" in capsys.readouterr().err


def test_errors_in_a_pipe_have_no_colour_and_no_breaks() -> None:
    done = run_program("preflight", "--token-budget", "0", "--gpu", "nothing", COLUMNS="60")
    assert done.returncode == 2
    assert "\x1b" not in done.stderr
    assert "  --gpu: the card table has no 'nothing'\n" in done.stderr


def test_every_mistake_of_profile_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    line = "profile --config qwen3-8 --mode sing --seq 0 --dtype bf16 --gpu t4 --clip 0 --allocator nonsense"
    assert run(line.split()) == 2
    shown = capsys.readouterr().err
    flags = ("--config", "--mode", "--seq", "--dtype", "--clip", "--allocator")
    assert shown.startswith(f"error: the command has {len(flags)} mistakes:\n")
    assert [flag for flag in flags if f"  {flag}: " not in shown] == []
