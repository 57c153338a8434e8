import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from dflash_doctor import __version__
from dflash_train import smoke
from dflash_train.cli import run
from dflash_train.models.target import check_layer_ids
from tests.train import tiny

ROOT = Path(__file__).parents[2]
SMALL = [
    "--tokens",
    "48",
    "--anchors",
    "4",
    "--block-size",
    "4",
    "--draft-layers",
    "1",
    "--dtype",
    "float32",
    "--device",
    "cpu",
]


def smoke_lines(capsys: pytest.CaptureFixture[str], *arguments: str) -> list[str]:
    assert run(["smoke", *SMALL, *arguments]) == 0
    captured = capsys.readouterr()
    assert captured.err == ""
    return captured.out.splitlines()


def losses(lines: list[str]) -> list[float]:
    return [float(line.split("loss ")[1].split(",")[0]) for line in lines if line.startswith("step ")]


@pytest.mark.parametrize("kind", ["ce", "kl", "ce-teacher", "ce_teacher"])
def test_smoke_trains_on_its_row(kind: str, capsys: pytest.CaptureFixture[str]) -> None:
    lines = smoke_lines(capsys, "--loss", kind)
    assert lines[0] == (
        "target tiny-qwen3: 8 layers, hidden 64, vocabulary 512, features of layers 1, 2, 3, 4, 5"
    )
    assert lines[1].endswith(f"4 blocks of 4 in 48 tokens, loss {kind.replace('_', '-')}")
    assert lines[2] == f"float32 on cpu, PyTorch {torch.__version__}"
    assert [line.split(":")[0] for line in lines[3:]] == ["step 1", "step 2", "step 3", "3 steps"]
    first, *_, last = losses(lines)
    assert last < first
    assert f"loss {first:.4f} to {last:.4f}" in lines[-1]
    assert lines[-1].endswith("all finite")


def test_smoke_runs_in_bfloat16_by_default(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["smoke", "--tokens", "32", "--anchors", "2", "--steps", "1", "--device", "cpu"]) == 0
    assert "bfloat16 on cpu" in capsys.readouterr().out


@pytest.mark.parametrize("name", ["llama", "gemma3", "qwen3_5", "gpt2"])
def test_smoke_takes_other_targets(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "config.json").write_text(json.dumps(tiny.target_configs()[name].to_dict()))
    lines = smoke_lines(capsys, "--model", str(tmp_path), "--steps", "1", "--loss", "kl", "--tokens", "300")
    assert lines[0].startswith(f"target {tmp_path.name}: 8 layers, hidden 32, vocabulary 97, features of")


def test_shallow_targets_give_fewer_features() -> None:
    assert smoke.feature_layers(64) == (1, 16, 31, 46, 61)
    assert smoke.feature_layers(6) == (1, 2, 3)
    assert smoke.feature_layers(2) == (1,)
    for num_layers in range(1, 65):
        check_layer_ids(smoke.feature_layers(num_layers), num_layers)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("--tokens 64kB", "error: --tokens: '64kB' is not a count"),
        ("--tokens 1", "error: --tokens: 1 is too small; the least is 2"),
        ("--tokens 8 --anchors 9", "error: --anchors: 9 anchors are more than the 8 tokens of the row"),
        ("--block-size 1", "error: --block-size: 1 is too small; the least is 2"),
        ("--draft-layers 0", "error: --draft-layers: 0 is too small; the least is 1"),
        ("--steps -1", "error: --steps: -1 is too small; the least is 1"),
        ("--loss mse", "error: --loss: 'mse' is not known\nhint: --loss is one of ce, kl, ce-teacher"),
        ("--dtype fp4", "error: --dtype: 'fp4' is not known"),
        ("--model qwen3-8", "error: --model: there is no model preset 'qwen3-8'; did you mean 'qwen3-8b'?"),
        ("--model ./nowhere", "error: --model: there is no config.json at ./nowhere"),
        ("--device tpu", "error: --device: 'tpu' is not known\nhint: --device is cpu, cuda or cuda:N"),
        ("--device mps", "error: --device: 'mps' is not known"),
        ("--device cuda:99", "error: --device: there is no cuda:99: PyTorch"),
        ("--stepz 1", "error: No such option"),
        ("--steps 0 --loss mse", "error: the command has 2 mistakes:\n  --steps: 0 is too small"),
    ],
)
def test_bad_input_is_refused(arguments: str, message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["smoke", *arguments.split()]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith(message)
    assert "Traceback" not in captured.err


@pytest.mark.parametrize(
    "change", [{"model_type": "nothing"}, {"num_attention_heads": 0}, {"layer_types": ["x"] * 8}]
)
def test_models_that_cannot_be_built_are_refused(
    change: dict[str, object], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "odd.json"
    file.write_text(json.dumps(dict(smoke.TINY.config) | change))
    assert run(["smoke", *SMALL, "--model", str(file)]) == 2
    assert capsys.readouterr().err.startswith("error: --model: odd cannot be built: ")


def test_models_that_do_not_fit_are_refused(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(smoke, "free_bytes", lambda device: 16 * 2**20)
    assert run(["smoke", "--model", "qwen3.6-27b", "--device", "cpu"]) == 2
    assert capsys.readouterr().err == (
        "error: --model: weights and optimizer state need 63.95 GiB, cpu has 16.00 MiB free\n"
        "hint: pass a smaller --model; `dflash-doctor preflight` forecasts a run without its memory\n"
    )


def test_running_out_of_memory_is_told(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(*arguments: object, **options: object) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 8.00 GiB.\nmore")

    monkeypatch.setattr(smoke, "target_step", fail)
    assert run(["smoke", *SMALL]) == 1
    assert capsys.readouterr().err.startswith(
        "error: out of memory on cpu: CUDA out of memory. Tried to allocate 8.00 GiB.\nhint: lower --tokens"
    )


def test_a_loss_that_is_no_number_fails(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(smoke, "LEARNING_RATE", float("nan"))
    assert run(["smoke", *SMALL]) == 1
    assert (
        capsys.readouterr()
        .out.splitlines()[-1]
        .endswith("NOT FINITE: a loss or a gradient norm is no number")
    )


def test_the_version_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["--version"]) == 0
    assert capsys.readouterr().out == f"dflash-train {__version__}\n"


def test_without_a_command_the_help_goes_to_stderr(capsys: pytest.CaptureFixture[str]) -> None:
    assert run([]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "smoke" in captured.err


def test_an_internal_error_shows_its_traceback(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(smoke, "run_smoke", lambda *arguments: 1 / 0)
    assert run(["smoke", *SMALL]) == 3
    assert "Traceback" in capsys.readouterr().err


def test_a_closed_pipe_is_quiet() -> None:
    program = [sys.executable, "-c", "from dflash_train.cli import main; main()", "smoke", *SMALL]
    with subprocess.Popen(program, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        assert process.stderr.read() == b""
    assert process.returncode == 141
