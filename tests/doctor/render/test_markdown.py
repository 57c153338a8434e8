"""Hold the Markdown of reports."""

from dataclasses import replace

from dflash_doctor.render.markdown import preflight_markdown, profile_markdown
from tests.doctor.render.expected_text import expected
from tests.doctor.render.sample_reports import crash_report, fixed_report, profile_report


def test_the_founding_crash_reads_as_expected() -> None:
    assert preflight_markdown(crash_report()) == expected("crash.md")


def test_the_fix_is_shown_beside_the_crash() -> None:
    assert preflight_markdown(fixed_report(), crash_report()) == expected("fixed.md")


def test_a_profile_reads_as_expected() -> None:
    assert profile_markdown(profile_report()) == expected("profile.md")


def test_markup_in_names_is_escaped() -> None:
    report = replace(profile_report(), name="_a_b| <img> [x](http://y) *z* `c|d`", notes=("odd ` tick",))
    text = profile_markdown(report)
    assert text.startswith(r"# \_a_b\| \<img> [x]\(http://y) \*z\* `c\|d` peaks at 4.50 GiB")
    assert r"- odd \` tick" in text
