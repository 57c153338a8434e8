"""Hold the text of reports, wide, narrow, coloured and in plain characters."""

from dataclasses import replace
from io import BytesIO, StringIO, TextIOWrapper

import pytest
from rich.console import Console

from dflash_doctor.render.console import render_preflight, render_profile
from tests.doctor.render.expected_text import expected, plain_console
from tests.doctor.render.sample_reports import crash_report, fixed_report, profile_report


@pytest.mark.parametrize("width", [60, 100, 160])
def test_the_founding_crash_reads_as_expected(width: int) -> None:
    console, out = plain_console(width)
    render_preflight(crash_report(), console)
    assert out.getvalue() == expected(f"crash_{width}.txt")


@pytest.mark.parametrize("width", [60, 100])
def test_the_fix_is_shown_beside_the_crash(width: int) -> None:
    console, out = plain_console(width)
    render_preflight(fixed_report(), console, before=crash_report())
    assert out.getvalue() == expected(f"fixed_{width}.txt")


@pytest.mark.parametrize("width", [60, 100])
def test_a_profile_reads_as_expected(width: int) -> None:
    console, out = plain_console(width)
    render_profile(profile_report(), console)
    assert out.getvalue() == expected(f"profile_{width}.txt")


@pytest.mark.parametrize("width", [60, 72, 80, 100, 120])
def test_no_line_is_wider_than_the_terminal(width: int) -> None:
    console, out = plain_console(width)
    render_preflight(crash_report(), console)
    render_preflight(fixed_report(), console, before=crash_report())
    render_profile(profile_report(), console)
    too_long = [line for line in out.getvalue().splitlines() if len(line) > width]
    assert too_long == []


def test_the_headline_of_an_error_is_red_and_stands_on_a_line_of_its_own() -> None:
    out = StringIO()
    render_preflight(
        crash_report(), Console(file=out, width=60, force_terminal=True, color_system="standard")
    )
    assert "\x1b[1;31mlm_head output is never read: 30.31 GiB on gpu0-6 (DF001)\x1b[0m\n" in out.getvalue()


def test_a_pipe_gets_no_escape_codes_and_a_terminal_without_utf8_plain_characters() -> None:
    out = TextIOWrapper(BytesIO(), encoding="ascii")
    console = Console(file=out, width=60, color_system=None)
    render_profile(profile_report(), console)
    render_preflight(crash_report(), console)
    out.seek(0)
    text = out.read()
    assert "\x1b" not in text
    assert "# allocated  - reserved" in text


def test_each_verdict_opens_with_a_sentence() -> None:
    report = fixed_report()
    tight = replace(report, verdict="tight", gpus=tuple(replace(g, verdict="tight") for g in report.gpus))
    lost = replace(
        report,
        verdict="unknown",
        gpus=tuple(replace(g, verdict="unknown", reason="a shape depends on values") for g in report.gpus),
    )
    first = []
    for shown in (report, tight, lost):
        console, out = plain_console(200)
        render_preflight(shown, console)
        first.append(out.getvalue().splitlines()[0])
    assert first == [
        "FITS: founding-crash, fixed with 40.31 GiB to spare on gpu0-6, the fullest",
        "TIGHT: founding-crash, fixed fits, but with less than the margin: 40.31 GiB to spare on gpu0-6",
        "UNKNOWN: whether founding-crash, fixed fits could not be determined: a shape depends on values",
    ]


def test_an_unknown_budget_gives_its_reason() -> None:
    console, out = plain_console(100)
    report = replace(crash_report(), largest_token_budget=None, largest_token_budget_reason="not searched")
    render_preflight(report, console)
    assert "Largest token budget that fits: unknown (not searched)\n" in out.getvalue()
