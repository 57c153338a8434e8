"""The command line: a file a command; `program` is the one place where errors are caught."""

from dflash_doctor.cli.app import app, main

__all__ = ["app", "main"]
