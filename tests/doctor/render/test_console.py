"""Hold the text of reports, wide, narrow, coloured and in plain characters."""

from dataclasses import replace
from io import BytesIO, StringIO, TextIOWrapper

import pytest
from rich.console import Console

from dflash_doctor.records.report import MemoryReport
from dflash_doctor.render.console import render_preflight, render_profile
from tests.doctor.render.expected_text import expected, plain_console
from tests.doctor.render.sample_reports import crash_report, fixed_report, profile_report


@pytest.mark.parametrize("width", [60, 80, 100, 160])
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
    assert "# allocated, - reserved" in text


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
        "FITS: founding-crash, fixed has 40.31 GiB to spare on gpu0-6, the fullest",
        "TIGHT: founding-crash, fixed fits, but with less than the margin: 40.31 GiB to spare on gpu0-6",
        "UNKNOWN: whether founding-crash, fixed fits could not be determined: a shape depends on values",
    ]


@pytest.mark.parametrize(
    ("reason", "shown"),
    [
        ("not searched (--no-search)", "not searched (--no-search)"),
        ("not even 8,192 tokens fit", "none found, not even 8,192 tokens fit"),
        ("", "unknown"),
    ],
)
def test_an_unknown_budget_gives_its_reason(reason: str, shown: str) -> None:
    report = replace(crash_report(), largest_token_budget=None, largest_token_budget_reason=reason)
    assert f"Largest token budget that fits: {shown}" in lines_of(report)


def lines_of(report: MemoryReport, before: MemoryReport | None = None, width: int = 100) -> list[str]:
    console, out = plain_console(width)
    render_preflight(report, console, before=before)
    return out.getvalue().splitlines()


MEND = "To mend it: add --fix to see the tuned plan; --fix-to run.toml writes it."


def test_a_plan_that_does_not_fit_is_told_how_to_mend_it_unless_nothing_can() -> None:
    report = crash_report()
    assert lines_of(report)[2] == MEND
    huge = replace(report.gpus[0], resident_bytes={"weights": 2 * report.gpus[0].capacity_bytes})
    assert MEND not in lines_of(replace(report, gpus=(huge,)))
    assert MEND not in lines_of(fixed_report())
    assert MEND not in lines_of(report, before=report)


def test_a_fix_that_lowers_the_budget_says_so() -> None:
    lower = replace(fixed_report(), token_budget=20_480)
    assert "The fix lowers the token budget from 65,536 to 20,480." in lines_of(lower, crash_report())
    assert not any("lowers" in line for line in lines_of(fixed_report(), crash_report()))


def test_the_findings_before_the_fix_stand_between_the_verdict_and_the_mended_plan() -> None:
    lines = lines_of(fixed_report(), crash_report())
    order = [
        lines.index("Found before the fix: errors (3)"),
        lines.index("lm_head output is never read: 30.31 GiB on gpu0-6 (DF001)"),
        lines.index("After the fix: founding-crash, fixed"),
        lines.index("No findings after the fix"),
    ]
    assert order == sorted(order)
    assert lines[0].startswith("FITS")


def test_findings_that_differ_in_the_line_only_are_told_once() -> None:
    lines = lines_of(crash_report())
    assert "  at   /data/scripts/dflash_model.py:61, 62" in lines
    assert "Errors (3)" in lines


def test_an_idle_gpu_has_no_peak() -> None:
    idle = replace(
        fixed_report().gpus[7], role="idle", peak_allocated_bytes=0, reason="no role is placed here"
    )
    lines = lines_of(replace(fixed_report(), gpus=(*fixed_report().gpus[:7], idle)))
    assert "gpu7: no role is placed here" in lines
    assert not any(line.startswith("gpu7 idle") for line in lines)
