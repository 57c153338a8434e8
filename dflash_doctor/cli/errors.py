"""Show an error: a sentence and a hint on stderr, or JSON on stdout."""

import json
import sys
import traceback
from typing import Any

from dflash_doctor.errors import DoctorError
from dflash_doctor.records.report import SCHEMA_VERSION

EXIT_BUG = 3


def show_error(error: DoctorError, *, as_json: bool) -> int:
    """Show an error and give its exit code."""
    if as_json:
        content = {"message": error.message, "hint": error.hint, "exit_code": error.exit_code}
        print(json.dumps({"schema_version": SCHEMA_VERSION, "error": content}, ensure_ascii=False, indent=2))
        return error.exit_code
    from rich.text import Text

    from dflash_doctor.cli.show import ReportConsole

    console = ReportConsole(stderr=True, highlight=False)
    console.print(Text.assemble(("error: ", "bold red"), error.message), soft_wrap=not console.is_terminal)
    for line in (error.hint or "").splitlines():
        console.print(Text.assemble(("hint: ", "cyan"), line), soft_wrap=not console.is_terminal)
    return error.exit_code


def show_usage_error(error: Any, *, as_json: bool) -> int:
    """Show an error of the command line itself, with the help that mends it."""
    context = getattr(error, "ctx", None)
    path = context.command_path if context else "dflash-doctor"
    message = str(error.format_message()).strip()
    return show_error(DoctorError(message, hint=f"see `{path} --help`"), as_json=as_json)


def show_bug(error: Exception, *, as_json: bool) -> int:
    """Show an error that nobody foresaw: nothing was determined, and the traceback says where."""
    traceback.print_exception(error, file=sys.stderr)
    shown = DoctorError(
        f"internal error: {type(error).__name__}: {error}",
        hint="nothing was determined; please report this with the traceback",
        exit_code=EXIT_BUG,
    )
    return show_error(shown, as_json=as_json)
