"""The program `dflash-doctor`: its commands and its version."""

from collections.abc import Sequence
from typing import Annotated

import typer

from dflash_doctor import __version__
from dflash_doctor.cli.preflight import preflight
from dflash_doctor.cli.profile import profile
from dflash_doctor.cli.program import leave, new_app, run_app
from dflash_doctor.cli.rules import explain, rules

app = new_app()
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
    """Run the program and leave with its exit code."""
    leave(app, "dflash-doctor")


def run(arguments: Sequence[str]) -> int:
    """Run one command line and give its exit code."""
    return run_app(app, "dflash-doctor", arguments)
