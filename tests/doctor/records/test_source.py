"""Name source lines as people read them."""

from pathlib import Path

import pytest

import dflash_doctor
from dflash_doctor.records.source import is_users, package_source, short_source

PROJECT = Path(dflash_doctor.__file__).parents[1]


@pytest.mark.parametrize(
    ("source", "shown"),
    [
        ("/opt/v/lib/python3.11/site-packages/transformers/m/q.py:1716", "transformers/m/q.py:1716"),
        ("/usr/lib/python3/dist-packages/numpy/core.py:3", "numpy/core.py:3"),
        (r"C:\v\Lib\site-packages\torch\nn\f.py:9", "torch/nn/f.py:9"),
        ("/usr/lib/python3.12/functools.py:60", "python3.12/functools.py:60"),
        (f"{PROJECT}/dflash_train/baseline.py:61", "dflash_train/baseline.py:61"),
        (f"{PROJECT}/dflash_doctor/engines/profile.py:83", "dflash_doctor/engines/profile.py:83"),
        ("/home/me/run/train.py:46", "/home/me/run/train.py:46"),
        ("/home/me/dflash_train/train.py:46", "/home/me/dflash_train/train.py:46"),
        ("train.py:46", "train.py:46"),
    ],
)
def test_packages_python_and_this_project_lose_the_machines_folders(source: str, shown: str) -> None:
    assert package_source(source) == shown
    assert is_users(source) == (shown == source)


@pytest.mark.parametrize(
    ("folder", "shown"),
    [
        ("/home/me", "run/train.py:46"),
        ("/home/me/run/", "train.py:46"),
        ("/home/m", "/home/me/run/train.py:46"),
        ("/", "/home/me/run/train.py:46"),
        ("", "/home/me/run/train.py:46"),
    ],
)
def test_a_users_file_is_named_from_the_folder_above_it(folder: str, shown: str) -> None:
    assert short_source("/home/me/run/train.py:46", folder) == shown


def test_the_current_folder_is_the_default(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    assert short_source(f"{Path.cwd()}/train.py:46") == "train.py:46"
    packaged = f"{Path.cwd()}/.venv/lib/python3.11/site-packages/transformers/m.py:1"
    assert short_source(packaged) == "transformers/m.py:1"
