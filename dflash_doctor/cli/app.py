"""The program: its commands, its version, and every way in which it ends."""

import os
import sys
from collections.abc import Sequence
from io import TextIOWrapper
from itertools import pairwise
from typing import Annotated

import typer

from dflash_doctor import __version__
from dflash_doctor.cli.errors import show_bug, show_error, show_usage_error
from dflash_doctor.cli.preflight import preflight
from dflash_doctor.cli.profile import profile
from dflash_doctor.cli.rules import explain, rules
from dflash_doctor.errors import DoctorError

EXIT_INTERRUPTED = 130
EXIT_BROKEN_PIPE = 141

app = typer.Typer(
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
)
app.command()(preflight)
app.command()(profile)
app.command()(explain)
app.command()(rules)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"dflash-doctor {__version__}")
        raise typer.Exit


@app.callback(invoke_without_command=True)
def _program(
    context: typer.Context,
    version: Annotated[
        bool, typer.Option("--version", is_eager=True, callback=_print_version, help="Print the version.")
    ] = False,
) -> None:
    """Forecast, trace and explain the GPU memory of DFlash drafter training.

    Exit codes: 0 fits; 1 does not fit, or a finding at or above --fail-on; 2 bad usage or input; 3 could
    not be determined.
    """
    if context.invoked_subcommand is None:
        typer.echo(context.get_help(), err=True)
        raise typer.Exit(2)


def main() -> None:
    """Run the program and leave with its exit code; what stdout cannot encode is shown as `?`."""
    if isinstance(sys.stdout, TextIOWrapper) and sys.stdout.errors == "strict":
        sys.stdout.reconfigure(errors="replace")
    code = run(sys.argv[1:])
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        code = _drop_stdout()
    sys.exit(code)


def run(arguments: Sequence[str]) -> int:
    """Run one command line and give its exit code; every error is caught and shown here."""
    as_json = _wants_json(arguments)
    command = typer.main.get_command(app)
    try:
        with command.make_context("dflash-doctor", list(arguments)) as context:
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


def _wants_json(arguments: Sequence[str]) -> bool:
    return "--format=json" in arguments or ("--format", "json") in pairwise(arguments)


def _drop_stdout() -> int:
    """Point stdout at nothing, so that the interpreter's last flush is quiet too."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return EXIT_BROKEN_PIPE
