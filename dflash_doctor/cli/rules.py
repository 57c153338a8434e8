"""`dflash-doctor explain CODE` and `dflash-doctor rules`."""

import difflib
from typing import Annotated

import typer

from dflash_doctor.errors import DoctorError


def explain(
    code: Annotated[str, typer.Argument(metavar="CODE", help="A rule's code or name, such as DF001.")],
) -> None:
    """Print what a rule finds, why it costs memory, and what to do instead."""
    from dflash_doctor.cli.show import stdout_console
    from dflash_doctor.render.explain import render_rule
    from dflash_doctor.rules.registry import all_rules, find_rule

    rule = find_rule(code)
    if rule is None:
        words = [word for known in all_rules() for word in (known.code, known.name)]
        near = difflib.get_close_matches(code, words, n=1) or difflib.get_close_matches(
            code.upper(), words, n=1
        )
        meant = f"; did you mean {near[0]}?" if near else ""
        raise DoctorError(f"there is no rule {code!r}{meant}", hint="`dflash-doctor rules` lists them")
    render_rule(rule, stdout_console())


def rules() -> None:
    """List the rules: code, severity, name, and what each finds."""
    from dflash_doctor.cli.show import stdout_console
    from dflash_doctor.render.explain import render_rules
    from dflash_doctor.rules.registry import all_rules

    render_rules(all_rules(), stdout_console())
