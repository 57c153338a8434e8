"""Stand in for `dflash_doctor.doctor`, and run the program."""

import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import dflash_doctor
from dflash_doctor.records.report import MemoryReport
from tests.doctor.render.sample_reports import profile_report


class FakeDoctor:
    """Answer like `dflash_doctor.doctor`, and keep what was asked."""

    def __init__(self, report: MemoryReport, before: MemoryReport | None = None) -> None:
        self.outcome = SimpleNamespace(report=report, before=before, files=())
        self.asked: dict[str, Any] = {}

    def preflight(self, plan: object, **rest: Any) -> SimpleNamespace:
        self.asked = {"plan": plan, **rest}
        return self.outcome

    def profile(self, request: object) -> Any:
        self.asked = {"request": request}
        return profile_report()


def put(monkeypatch: pytest.MonkeyPatch, fake: Any) -> None:
    """Put a fake in the place of `dflash_doctor.doctor`."""
    monkeypatch.setitem(sys.modules, "dflash_doctor.doctor", fake)
    monkeypatch.setattr(dflash_doctor, "doctor", fake, raising=False)


def put_untraceable(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fail where anything is traced: what is refused must be refused before."""

    def refuse(*args: object, **rest: object) -> None:
        raise AssertionError("traced")

    put(monkeypatch, SimpleNamespace(preflight=refuse, profile=refuse))


def run_python(code: str, *arguments: str, **environ: str) -> subprocess.CompletedProcess[str]:
    """Run Python code in a process of its own, from the repository, with its output in pipes."""
    return subprocess.run(
        [sys.executable, "-c", code, *arguments],
        capture_output=True,
        text=True,
        check=False,
        cwd=Path(dflash_doctor.__file__).parent.parent,
        env={**os.environ, **environ},
    )


def run_program(*arguments: str, **environ: str) -> subprocess.CompletedProcess[str]:
    """Run the program in a process of its own."""
    return run_python("from dflash_doctor.cli import main; main()", *arguments, **environ)
