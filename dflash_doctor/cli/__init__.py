"""The command `dflash-doctor`: a file a command, and the one place where errors are caught."""

from dflash_doctor.cli.app import app, main

__all__ = ["app", "main"]
