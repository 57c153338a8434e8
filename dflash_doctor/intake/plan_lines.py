"""Find the line of each key of a TOML text; the standard library's parser does not tell it."""

import re

_HEADER = re.compile(r"\s*(\[\[?)\s*([^\]#]+?)\s*\]\]?\s*(?:#.*)?$")
_PART = re.compile(r"""\s*(?:"((?:[^"\\]|\\.)*)"|'([^']*)'|([A-Za-z0-9_-]+))\s*(\.|=|$)""")


def lines_of_keys(text: str) -> dict[str, int]:
    """Map the dotted path of every table and key of a valid TOML text to its line, counted from 1.

    Entries of an array of tables are numbered: `placement.cards.0.name`. A key inside an inline
    table is not listed; its line is that of the key that holds it.
    """
    lines = text.split("\n")
    found: dict[str, int] = {}
    counts: dict[str, int] = {}
    prefix = ""
    index = 0
    while index < len(lines):
        line = lines[index]
        header = _HEADER.match(line)
        if header:
            prefix = ".".join(_dotted(header[2])[0])
            if header[1] == "[[":
                counts[prefix] = counts.get(prefix, -1) + 1
                found.setdefault(prefix, index + 1)
                prefix = f"{prefix}.{counts[prefix]}"
            found.setdefault(prefix, index + 1)
            index += 1
            continue
        names, end = _dotted(line)
        if names and end:
            path = prefix
            for name in names:
                path = f"{path}.{name}" if path else name
                found.setdefault(path, index + 1)
            index = _end_of_value(lines, index, end) + 1
        else:
            index += 1
    return found


def line_of(lines: dict[str, int], path: str) -> int | None:
    """Find the line of a path, or of the nearest thing that holds it."""
    while path:
        if path in lines:
            return lines[path]
        path = path.rpartition(".")[0]
    return None


def _dotted(text: str) -> tuple[list[str], int]:
    """Split a dotted key; the second value is where the value begins, 0 where there is none."""
    names: list[str] = []
    position = 0
    while match := _PART.match(text, position):
        names.append(next(group for group in match.groups()[:3] if group is not None))
        position = match.end()
        if match[4] != ".":
            return names, position if match[4] == "=" else 0
    return names, 0


def _end_of_value(lines: list[str], index: int, position: int) -> int:
    """Find the line on which a value ends that begins at `position` of line `index`."""
    depth = 0
    quote = ""
    while index < len(lines):
        line = lines[index]
        while position < len(line):
            if quote:
                if line[position] == "\\" and quote[0] == '"':
                    position += 2
                elif line.startswith(quote, position):
                    position += len(quote)
                    quote = ""
                else:
                    position += 1
                continue
            char = line[position]
            if char == "#":
                break
            if char in "\"'":
                quote = char * 3 if line.startswith(char * 3, position) else char
                position += len(quote)
                continue
            depth += (char in "[{") - (char in "]}")
            position += 1
        if depth <= 0 and len(quote) != 3:
            return index
        index, position = index + 1, 0
    return len(lines) - 1
