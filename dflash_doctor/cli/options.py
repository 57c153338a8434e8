"""Options that several commands share, and what they mean for the exit code."""

from collections.abc import Iterable
from enum import StrEnum
from typing import Annotated, get_args

import typer

from dflash_doctor.errors import DoctorError
from dflash_doctor.records.finding import Finding, Severity
from dflash_doctor.records.report import Verdict

EXIT_FITS = 0
EXIT_FAILS = 1
EXIT_UNKNOWN = 3

# Most severe first.
SEVERITIES: tuple[str, ...] = get_args(Severity)


class Format(StrEnum):
    """How a report is printed."""

    text = "text"
    json = "json"
    md = "md"


class Engine(StrEnum):
    """What traces the steps."""

    meta = "meta"


FormatOption = Annotated[Format, typer.Option("--format", help="How the report is printed on stdout.")]
EngineOption = Annotated[
    Engine, typer.Option("--engine", help="What traces the steps; meta needs neither GPU nor memory.")
]
FailOnOption = Annotated[
    list[str] | None,
    typer.Option(
        "--fail-on",
        metavar="CODE|SEVERITY",
        help="Exit 1 on findings of this code (DF001), family (DF0), or severity and above "
        "(error, warning, info); may be repeated.",
    ),
]


def check_fail_on(words: Iterable[str] | None) -> tuple[str, ...]:
    """Read --fail-on: severities, codes and families; raise DoctorError for any other word."""
    from dflash_doctor.rules.registry import all_rules

    codes = [rule.code for rule in all_rules()]
    read = []
    for word in (part.strip() for entry in words or () for part in entry.split(",")):
        if word.lower() in SEVERITIES:
            read.append(word.lower())
        elif len(word) >= 3 and any(code.startswith(word.upper()) for code in codes):
            read.append(word.upper())
        else:
            raise DoctorError(
                f"--fail-on: {word!r} is neither a code nor a severity",
                hint=f"severities are {', '.join(SEVERITIES)}; `dflash-doctor rules` lists the codes",
            )
    return tuple(read)


def fails(findings: Iterable[Finding], fail_on: Iterable[str]) -> bool:
    """Tell whether a finding is one that --fail-on names."""
    words = tuple(fail_on)
    levels = [SEVERITIES.index(word) for word in words if word in SEVERITIES]
    lowest = max(levels, default=-1)
    prefixes = tuple(word for word in words if word not in SEVERITIES)
    return any(
        SEVERITIES.index(finding.severity) <= lowest or (prefixes and finding.code.startswith(prefixes))
        for finding in findings
    )


def exit_code(verdict: Verdict, findings: Iterable[Finding], fail_on: Iterable[str]) -> int:
    """Give the exit code of a verdict and the findings beside it."""
    if verdict == "wont-fit" or fails(findings, fail_on):
        return EXIT_FAILS
    return EXIT_UNKNOWN if verdict == "unknown" else EXIT_FITS
