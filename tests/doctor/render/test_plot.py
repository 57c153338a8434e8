"""Hold the plots drawn in characters."""

from dflash_doctor.render.plot import memory_curve, stacked_bar

GIB = 2**30


def plain(lines: object) -> list[str]:
    return [line.plain.rstrip() for line in lines]  # type: ignore[attr-defined]


def test_a_bar_has_one_letter_a_category_and_its_full_width() -> None:
    lines = plain(stacked_bar({"activations": 2 * GIB, "weights": 6 * GIB, "buffers": 0}, 40))
    assert lines == [
        "W" * 30 + "A" * 10,
        "W weights         6.00 GiB  75.0 %",
        "A activations     2.00 GiB  25.0 %",
    ]
    assert plain(stacked_bar({}, 40)) == ["nothing"]


def test_the_names_below_a_bar_carry_no_colour() -> None:
    lines = stacked_bar({"weights": GIB}, 4)
    assert [(span.start, span.end, str(span.style)) for span in lines[1].spans] == [(0, 1, "black on blue")]
    assert str(lines[1].style) == ""


def test_a_curve_shows_area_line_phases_and_scale() -> None:
    curve = [(0, GIB, 2 * GIB), (5, 4 * GIB, 4 * GIB), (9, GIB, 4 * GIB)]
    lines = plain(memory_curve(curve, [("load", 0, 5), ("x", 5, 10)], width=10, height=4))
    assert lines == [
        "4.00 |     █████",
        "2.50 |─────█████",
        "     |     █████",
        "0.00 |██████████",
        "     +----------",
        "      |load|x",
        "      █ allocated, ─ reserved, in GiB",
        "      3 allocations and frees from left to right",
    ]


def test_a_phase_too_narrow_for_its_name_is_marked_by_a_letter() -> None:
    phases = [("load", 0, 20), ("forward", 20, 24), ("backward", 24, 38), ("optimizer", 38, 40)]
    lines = plain(memory_curve([(39, 3 * 2**20, 4 * 2**20)], phases, width=40, height=3))
    assert lines[-4:-1] == [
        "      |load               |f  |backward     |o",
        "      f forward, o optimizer",
        "      █ allocated, ─ reserved, in MiB",
    ]


def test_a_curve_without_events_says_so() -> None:
    assert plain(memory_curve([], [])) == ["no events"]
