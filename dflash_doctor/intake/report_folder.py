"""Make sure that reports can be written, before any work is done for them."""

import errno
import tempfile
from pathlib import Path

from dflash_doctor.errors import DoctorError


def check_report_folder(folder: Path, *, flag: str = "--report-dir") -> None:
    """Make the folder and try to write in it; raise DoctorError naming `flag` where it cannot be."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise DoctorError(
            f"{flag}: nothing can be written in {folder}: {error.strerror or error}",
            hint=f"name another folder with {flag}, or pass --no-report",
        ) from None


def check_writable(path: Path, *, flag: str) -> None:
    """Try whether a file can be made at a path, and leave none; raise DoctorError naming `flag`.

    A file that is there is left alone.
    """
    try:
        if path.is_dir():
            raise IsADirectoryError(errno.EISDIR, "it is a folder")
        if path.exists() or path.is_symlink():
            raise DoctorError(f"{flag}: {path}: it exists; name another file or remove it")
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=path.parent):
            pass
    except OSError as error:
        raise DoctorError(f"{flag}: {path} cannot be written: {error.strerror or error}") from None
