"""What a program of this project is: its look, and every way in which it ends."""

import os
import sys
from collections.abc import Sequence
from io import TextIOWrapper
from itertools import pairwise

import typer

from dflash_doctor.cli.errors import show_bug, show_error, show_usage_error
from dflash_doctor.errors import DoctorError

EXIT_INTERRUPTED = 130
EXIT_BROKEN_PIPE = 141


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
    if isinstance(sys.stdout, TextIOWrapper) and sys.stdout.errors == "strict":
        sys.stdout.reconfigure(errors="replace")
    code = run_app(app, name, sys.argv[1:])
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        code = _drop_stdout()
    sys.exit(code)


def run_app(app: typer.Typer, name: str, arguments: Sequence[str]) -> int:
    """Run one command line and give its exit code; every error is caught and shown here."""
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
        return _drop_stdout()
    except Exception as error:
        if hasattr(error, "format_message"):  # typer's usage errors; its versions disagree on the class
            return show_usage_error(error, as_json=as_json)
        return show_bug(error, as_json=as_json)


def _drop_stdout() -> int:
    """Point stdout at nothing, so that the interpreter's last flush is quiet too."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return EXIT_BROKEN_PIPE
