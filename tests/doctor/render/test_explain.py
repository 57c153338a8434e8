"""Hold how rules are explained."""

from typing import ClassVar

from dflash_doctor.records.finding import Severity
from dflash_doctor.render.explain import render_rule, render_rules
from tests.doctor.render.expected_text import plain_console


class Sample:
    """Find a thing.

    ## What it does

    Looks at a great many things, one after the other, until it finds one that is odd.

    And then stops.

    ## Example

        for thing in things:  # code is never wrapped, however long its lines may be in the end
            look(thing)

    or the like.
    """

    code = "DF099"
    name = "odd-thing"
    severity: ClassVar[Severity] = "warning"


class Wordy(Sample):
    """Find a thing that takes a few more words."""


def test_a_rule_is_printed_by_sections_with_its_code_untouched() -> None:
    console, out = plain_console(60)
    render_rule(Sample, console)
    assert out.getvalue() == (
        "DF099 odd-thing (warning)\n"
        "\n"
        "Find a thing.\n"
        "\n"
        "What it does\n"
        "Looks at a great many things, one after the other, until it\n"
        "finds one that is odd.\n"
        "\n"
        "And then stops.\n"
        "\n"
        "Example\n"
        "    for thing in things:  # code is never wrapped, however long its lines may be in the end\n"
        "        look(thing)\n"
        "\n"
        "or the like.\n"
    )


def test_rules_are_listed_in_columns_or_below_each_other() -> None:
    console, out = plain_console(100)
    render_rules([Sample, Sample], console)
    line = "DF099  warning  odd-thing  Find a thing.\n"
    assert out.getvalue() == line + line + "\ndflash-doctor explain CODE tells more.\n"
    console, out = plain_console(40)
    render_rules([Wordy], console)
    assert out.getvalue().startswith(
        "DF099 odd-thing (warning)\n  Find a thing that takes a few more\n  words.\n"
    )
