"""Draw in characters: a stacked bar of what is alive, and a curve of allocated and reserved bytes."""

from collections.abc import Mapping, Sequence

from rich.text import Text

from dflash_doctor.render.wording import CATEGORIES
from dflash_doctor.units import format_bytes

PLOT_WIDTH, PLOT_HEIGHT = 90, 12
GIB, MIB = 2**30, 2**20
EIGHTHS = " ▁▂▃▄▅▆▇█"
RESERVED_MARK, ASCII_RESERVED = "─", "-"
MARKS = {
    "weights": ("W", "blue"),
    "buffers": ("B", "cyan"),
    "tables": ("E", "cyan"),
    "master_weights": ("M", "magenta"),
    "gradients": ("G", "yellow"),
    "optimizer_state": ("O", "magenta"),
    "inputs": ("I", "white"),
    "features": ("F", "green"),
    "activations": ("A", "red"),
    "temporaries": ("T", "yellow"),
    "workspace": ("K", "white"),
}
"""A letter and a colour for each category."""
UNKNOWN_MARK = ("?", "white")

Curve = Sequence[tuple[int, int, int]]
Phases = Sequence[tuple[str, int, int]]


def stacked_bar(sizes: Mapping[str, int], width: int) -> list[Text]:
    """Draw a bar of one letter a category, and name letters, bytes and shares below it."""
    order = list(CATEGORIES)
    items = [(name, size) for name, size in sizes.items() if size > 0]
    items.sort(key=lambda item: order.index(item[0]) if item[0] in CATEGORIES else len(order))
    total = sum(size for _, size in items)
    if not total:
        return [Text("nothing")]
    bar = Text()
    end = drawn = 0
    for name, size in items:
        letter, colour = MARKS.get(name, UNKNOWN_MARK)
        end += size
        stop = round(end * width / total)
        bar.append(letter * (stop - drawn), style=f"black on {colour}")
        drawn = stop
    names = {name: CATEGORIES.get(name, name.replace("_", " ")) for name, _ in items}
    column = max(map(len, names.values()))
    lines = [bar]
    for name, size in items:
        letter, colour = MARKS.get(name, UNKNOWN_MARK)
        line = Text().append(letter, style=f"black on {colour}")
        share = f"{100 * size / total:5.1f} %"
        lines.append(line.append(f" {names[name]:<{column}} {format_bytes(size):>12} {share}"))
    return lines


def memory_curve(
    curve: Curve,
    phases: Phases,
    *,
    width: int = PLOT_WIDTH,
    height: int = PLOT_HEIGHT,
    is_ascii: bool = False,
) -> list[Text]:
    """Plot allocated bytes as an area and reserved bytes as a line, over events; phases below.

    A phase too narrow for its name is marked by its first letter, which the legend explains.
    """
    if not curve:
        return [Text("no events")]
    stop = max([curve[-1][0] + 1, *(end for _, _, end in phases)])
    columns = _columns(curve, stop, width)
    top = max(max(pair) for pair in columns) or 1
    unit, unit_name = (GIB, "GiB") if top >= GIB else (MIB, "MiB")
    middle = top * (height // 2 + 0.5) / height
    sizes = {height - 1: top, height // 2: middle, 0: 0}
    labels = {row: f"{size / unit:.2f}" for row, size in sizes.items()}
    margin = max(map(len, labels.values()))
    lines = []
    for row in reversed(range(height)):
        line = Text().append(f"{labels.get(row, ''):>{margin}} |", style="dim")
        for allocated, reserved in columns:
            _draw_cell(line, row, allocated * height * 8 / top, reserved * height * 8 / top, height, is_ascii)
        line.rstrip()
        lines.append(line)
    lines.append(Text(f"{'':>{margin}} +{'-' * width}", style="dim"))
    ruler, initials = _phase_ruler(phases, stop, width)
    full, mark = ("#", ASCII_RESERVED) if is_ascii else (EIGHTHS[-1], RESERVED_MARK)
    legend = f"{full} allocated, {mark} reserved, in {unit_name}"
    events = f"{len(curve):,} allocations and frees from left to right"
    for text in (ruler, initials, legend, events):
        lines += [Text(f"{'':>{margin}}  {text}", style="dim")] if text else []
    return lines


def _columns(curve: Curve, stop: int, width: int) -> list[tuple[int, int]]:
    """Give the highest allocated and reserved bytes in each column of the plot."""
    columns = []
    at, allocated, reserved = 0, 0, 0
    for column in range(width):
        end = (column + 1) * stop / width
        high_allocated, high_reserved = allocated, reserved
        while at < len(curve) and curve[at][0] < end:
            _, allocated, reserved = curve[at]
            high_allocated, high_reserved = max(high_allocated, allocated), max(high_reserved, reserved)
            at += 1
        columns.append((high_allocated, high_reserved))
    return columns


def _draw_cell(line: Text, row: int, allocated: float, reserved: float, height: int, is_ascii: bool) -> None:
    filled = min(8, max(0, round(allocated - row * 8)))
    if is_ascii:
        filled = 8 if filled >= 4 else 0
    if filled:
        line.append("#" if is_ascii else EIGHTHS[filled], style="cyan")
    elif reserved > 0 and row == min(height - 1, int(reserved / 8)):
        line.append(ASCII_RESERVED if is_ascii else RESERVED_MARK, style="yellow")
    else:
        line.append(" ")


def _phase_ruler(phases: Phases, stop: int, width: int) -> tuple[str, str]:
    """Mark where phases begin with their names or first letters, and explain those letters."""
    spans = [(name, start * width // stop, end * width // stop) for name, start, end in phases]
    spans = [(name, column, end) for name, column, end in spans if end - column > 1]
    narrow = {name for name, column, end in spans if len(name) >= end - column}
    initials = {name: name[0] for name, _, _ in spans if name in narrow}
    ruler = ""
    for name, column, _ in spans:
        ruler = ruler.ljust(column) + "|" + initials.get(name, name)
    return ruler, ", ".join(f"{letter} {name}" for name, letter in initials.items())
