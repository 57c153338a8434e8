"""Read counts, bytes and shares as people write them; print bytes as PyTorch does."""

import re
from decimal import Decimal

from dflash_doctor.errors import DoctorError

COUNT_HINT = "sizes are read as 65536, 65_536, 64k (k = 1000), 64Ki (Ki = 1024, so 65,536), M and Mi"
BYTES_HINT = "memory is read as 94.97GiB (GiB = 1024³ bytes), 80GB (GB = 1000³ bytes), MiB, MB or plain bytes"
PERCENT_HINT = "shares are read as 4% or 0.04"

INT32_MAX = 2**31 - 1

_COUNT_UNITS = {
    "": 1,
    "k": 1000,
    "m": 1000**2,
    "g": 1000**3,
    "ki": 1024,
    "mi": 1024**2,
    "gi": 1024**3,
}
_BYTE_UNITS = {
    "": 1,
    "b": 1,
    "bytes": 1,
    "kb": 1000,
    "mb": 1000**2,
    "gb": 1000**3,
    "tb": 1000**4,
    "kib": 1024,
    "mib": 1024**2,
    "gib": 1024**3,
    "tib": 1024**4,
}
_NUMBER = re.compile(
    r"([+-]?)((?:\d{1,3}(?:,\d{3})+|\d+(?:_\d+)*)(?:\.\d+)?|\.\d+)(?:e(\+?\d{1,3}))?\s*([a-z]*)",
    re.IGNORECASE | re.ASCII,
)


def _split(text: str) -> tuple[Decimal, str] | None:
    """Split a number from its unit; None where the text has no such form."""
    match = _NUMBER.fullmatch(text.strip())
    if match is None:
        return None
    sign, digits, exponent, unit = match.groups()
    number = Decimal(digits.replace("_", "").replace(",", "")) * Decimal(10) ** int(exponent or 0)
    return (-number if sign == "-" else number), unit.lower()


def parse_count(
    text: str | int, *, flag: str, minimum: int = 1, maximum: int = INT32_MAX, is_size: bool = True
) -> int:
    """Read a count such as 65536, 65_536, 64k (k = 1000) or 64Ki (Ki = 1024).

    Space around it is dropped. Raises DoctorError naming `flag` where the text is no whole number
    or lies outside [minimum, maximum]; where it is a size, the hint says how sizes are written.
    """
    hint = COUNT_HINT if is_size else None
    parts = _split(str(text))
    if parts is None or parts[1] not in _COUNT_UNITS:
        raise DoctorError(f"{flag}: {str(text)!r} is not a count", hint=hint)
    value = parts[0] * _COUNT_UNITS[parts[1]]
    if value != value.to_integral_value():
        raise DoctorError(f"{flag}: {str(text)!r} is {value.normalize():f}, not a whole number", hint=hint)
    if value < minimum:
        raise DoctorError(f"{flag}: {str(text).strip()} is too small; the least is {minimum:,}", hint=hint)
    if value > maximum:
        shown = f"{int(value):,}" if value < 10**18 else f"{value:.0e}"
        raise DoctorError(
            f"{flag}: {str(text).strip()} is {shown}, too large; the most is {maximum:,}", hint=hint
        )
    return int(value)


def parse_bytes(text: str | int, *, flag: str, minimum: int = 1) -> int:
    """Read a size in bytes such as 94.97GiB or 80GB; a plain number is bytes.

    Raises DoctorError naming `flag` for anything else, a plain number below 1 MiB (which is a
    forgotten unit) and sizes of 1 EiB and more.
    """
    parts = _split(str(text))
    shown = str(text).strip()
    if parts is None or parts[1] not in _BYTE_UNITS:
        raise DoctorError(f"{flag}: {str(text)!r} is not a size in bytes", hint=BYTES_HINT)
    number, unit = parts
    value = int((number * _BYTE_UNITS[unit]).to_integral_value())
    if value < minimum:
        raise DoctorError(f"{flag}: {shown} is too small; it must be more than zero", hint=BYTES_HINT)
    if not unit and value < 2**20:
        raise DoctorError(f"{flag}: {shown} has no unit; did you mean {shown}GiB?", hint=BYTES_HINT)
    if value >= 2**60:
        raise DoctorError(f"{flag}: {shown} is more than any device has", hint=BYTES_HINT)
    return value


def parse_percent(text: str | float, *, flag: str) -> float:
    """Read a share such as 4% or 0.04, in [0, 1).

    Raises DoctorError naming `flag`.
    """
    shown = str(text).strip()
    match = re.fullmatch(r"(\d+(?:\.\d*)?|\.\d+)\s*(%?)", shown, re.ASCII)
    if match is None:
        raise DoctorError(f"{flag}: {str(text)!r} is not a share", hint=PERCENT_HINT)
    value = float(Decimal(match[1]) / (100 if match[2] else 1))
    if value >= 1:
        meant = "" if match[2] else f"; did you mean {shown}%?"
        raise DoctorError(f"{flag}: {shown} is not below 1{meant}", hint=PERCENT_HINT)
    return value


def format_bytes(num_bytes: int) -> str:
    """Print bytes as PyTorch's messages do: two decimals, units of 1024."""
    size = abs(num_bytes)
    sign = "-" if num_bytes < 0 else ""
    if size <= 1024:
        return f"{sign}{size} bytes"
    for unit, limit in (("KiB", 2**20), ("MiB", 2**30)):
        if size <= limit:
            return f"{sign}{size / (limit / 1024):.2f} {unit}"
    return f"{sign}{size / 2**30:.2f} GiB"
