"""What a program of this project is: its look, and every way in which it ends."""

import errno
import os
import sys
from collections.abc import Sequence
from io import TextIOWrapper
from itertools import pairwise
from typing import TextIO

import typer

from dflash_doctor.cli.errors import show_bug, show_error, show_usage_error
from dflash_doctor.errors import DoctorError

EXIT_UNWRITTEN = 2
EXIT_INTERRUPTED = 130
EXIT_BROKEN_PIPE = 141
_UNWRITABLE = (errno.ENOSPC, errno.EBADF, errno.EIO, errno.EFBIG, errno.EDQUOT)


def new_app() -> typer.Typer:
    """Make an app with the help that all programs have."""
    return typer.Typer(
        add_completion=False,
        rich_markup_mode=None,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
    )


def leave(app: typer.Typer, name: str) -> None:
    """Run the process's own command line and leave; what stdout cannot encode is shown as `?`."""
    if sys.stderr is None:
        sys.stderr = open(os.devnull, "w")  # noqa: SIM115
    if sys.stdout is None:
        sys.exit(_unwritten("stdout is closed"))
    if isinstance(sys.stdout, TextIOWrapper) and sys.stdout.errors == "strict":
        sys.stdout.reconfigure(errors="replace")
    code = run_app(app, name, sys.argv[1:])
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        code = _drop_output()
    except OSError as error:
        code = _full(error)
    sys.exit(code)


def run_app(app: typer.Typer, name: str, arguments: Sequence[str]) -> int:
    """Run one command line and give its exit code; every error is caught and shown here."""
    try:
        return _run_and_show(app, name, arguments)
    except BrokenPipeError:
        return _drop_output()
    except OSError as error:
        return _full(error)


def _run_and_show(app: typer.Typer, name: str, arguments: Sequence[str]) -> int:
    as_json = "--format=json" in arguments or ("--format", "json") in pairwise(arguments)
    command = typer.main.get_command(app)
    try:
        with command.make_context(name, list(arguments)) as context:
            code = command.invoke(context)
        return code if isinstance(code, int) else 0
    except typer.Exit as end:
        return end.exit_code
    except DoctorError as error:
        return show_error(error, as_json=as_json)
    except (KeyboardInterrupt, typer.Abort):
        return EXIT_INTERRUPTED
    except BrokenPipeError:
        raise
    except Exception as error:
        if _is_of_output(error):
            raise
        if hasattr(error, "format_message"):  # typer's usage errors; its versions disagree on the class
            return show_usage_error(error, as_json=as_json)
        return show_bug(error, as_json=as_json)


def _is_of_output(error: Exception) -> bool:
    """Say whether a stream that was open already could not be written; a file's error has its name."""
    return isinstance(error, OSError) and error.errno in _UNWRITABLE and error.filename is None


def _full(error: OSError) -> int:
    """End where stdout takes no more, or where stderr does and nothing can be said."""
    _drop(sys.stdout)
    return _unwritten(error.strerror or str(error))


def _unwritten(reason: str) -> int:
    try:
        return show_error(DoctorError(f"cannot write the report: {reason}"), as_json=False)
    except OSError:
        _drop(sys.stderr)
        return EXIT_UNWRITTEN


def _drop_output() -> int:
    """Point both streams at nothing, so that the interpreter's last flush is quiet too."""
    for stream in (sys.stdout, sys.stderr):
        _drop(stream)
    return EXIT_BROKEN_PIPE


def _drop(stream: TextIO) -> None:
    os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
