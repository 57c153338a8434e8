"""Where code lies, `file:line`, as people read it: the same on every machine where that is possible."""

import os
import re

_PACKAGES = re.compile(r".*/(?:site|dist)-packages/")
_PYTHON = re.compile(r".*/lib(?:64)?/(?=python3\.\d+/)")
_PROJECT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))).replace("\\", "/")
_OWN = (f"{_PROJECT}/dflash_doctor/", f"{_PROJECT}/dflash_train/")


def package_source(source: str) -> str:
    """Name a file of an installed package, of Python or of this project by its package; others stay."""
    path = source.replace("\\", "/")
    for start in (_PACKAGES, _PYTHON):
        if found := start.match(path):
            return path[found.end() :]
    return path[len(_PROJECT) + 1 :] if path.startswith(_OWN) else path


def is_users(file: str) -> bool:
    """Say whether a file is the user's own: of no package, and neither of Python nor of this project."""
    return package_source(file) == file.replace("\\", "/")


def short_source(source: str, folder: str | None = None) -> str:
    """Name a packaged file by its package, and one below `folder` from there; None: the current folder."""
    path = package_source(source)
    start = (_current_folder() if folder is None else folder).replace("\\", "/").rstrip("/")
    return path[len(start) + 1 :] if start and path.startswith(f"{start}/") else path


def _current_folder() -> str:
    try:
        return os.getcwd()
    except OSError:  # it was removed meanwhile
        return ""
