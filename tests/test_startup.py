"""Hold the programs to a quick start: what only prints imports nothing heavy."""

import subprocess
import sys
from pathlib import Path

import pytest
import typer

from dflash_doctor.cli import app as doctor_app
from dflash_train.cli import app as train_app

ROOT = Path(__file__).parents[1]
PROGRAMS = {"dflash_doctor.cli": doctor_app, "dflash_train.cli": train_app}
HEAVY = {"torch", "transformers", "pandas", "numpy", "huggingface_hub"}

WATCHED = """
import atexit, sys
atexit.register(lambda: print(*sys.modules, file=sys.stderr))
from {module} import main
main()
"""


def imported_by(module: str, *arguments: str, expected_code: int = 0) -> set[str]:
    """Run a program in a fresh interpreter; give the modules that it has imported when it ends."""
    program = [sys.executable, "-c", WATCHED.format(module=module), *arguments]
    done = subprocess.run(program, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == expected_code, done.stderr
    return set(done.stderr.splitlines()[-1].split())


def help_lines() -> list[tuple[str, ...]]:
    lines = []
    for module, app in PROGRAMS.items():
        group = typer.main.get_command(app)
        lines.append((module, "--help"))
        lines.extend((module, command, "--help") for command in getattr(group, "commands", {}))
    return lines


@pytest.mark.parametrize("line", help_lines(), ids=" ".join)
def test_help_imports_nothing_heavy(line):
    imported = imported_by(*line)
    assert line[0] in imported
    assert not HEAVY & imported


@pytest.mark.parametrize(
    "line",
    [
        ("dflash_doctor.cli", "--version"),
        ("dflash_doctor.cli", "rules"),
        ("dflash_doctor.cli", "explain", "DF001"),
        ("dflash_train.cli", "--version"),
    ],
    ids=" ".join,
)
def test_what_only_prints_imports_nothing_heavy(line):
    assert not HEAVY & imported_by(*line)


@pytest.mark.parametrize(
    "line",
    [
        ("dflash_doctor.cli", "preflight", "--token-budget", "0"),
        ("dflash_doctor.cli", "profile", "--config", "qwen3-0.6b", "--seq", "none"),
        ("dflash_train.cli", "smoke", "--steps", "0"),
    ],
    ids=" ".join,
)
def test_bad_input_is_refused_before_anything_heavy_is_imported(line):
    assert not HEAVY & imported_by(*line, expected_code=2)
