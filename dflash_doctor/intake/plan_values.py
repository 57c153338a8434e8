"""Convert one value of a plan file or a flag to what its key holds."""

from collections.abc import Callable

from dflash_doctor.errors import DoctorError
from dflash_doctor.intake.plan_keys import DTYPE_ALIASES, SIZES, Key, Kind
from dflash_doctor.intake.settings import Place, did_you_mean, one_of
from dflash_doctor.units import parse_count, parse_percent


def convert(key: Key, raw: object, place: Place) -> object:
    """Convert `raw` (a TOML value or the text of a flag); raise DoctorError naming the place."""
    return _CONVERTERS[key.kind](key, raw, place)


def _count(key: Key, raw: object, place: Place) -> int:
    if isinstance(raw, bool) or not isinstance(raw, int | str):
        raise DoctorError(f"{place}: a count is expected, not {_shown(raw)}")
    return parse_count(raw, flag=str(place), minimum=key.minimum, is_size=key.path in SIZES)


def _counts(key: Key, raw: object, place: Place) -> tuple[int, ...]:
    parts = raw.split(",") if isinstance(raw, str) else raw
    blank = isinstance(raw, str) and not all(part.strip() for part in raw.split(","))
    if not isinstance(parts, list) or not parts or blank:
        raise DoctorError(f"{place}: a list of counts is expected, such as 1,16,31,46,61, not {_shown(raw)}")
    return tuple(_count(key, part, place) for part in parts)


def _share(key: Key, raw: object, place: Place) -> float:
    if isinstance(raw, bool) or not isinstance(raw, int | float | str):
        raise DoctorError(f"{place}: a share such as 4% is expected, not {_shown(raw)}")
    return parse_percent(raw, flag=str(place))


def _number(key: Key, raw: object, place: Place) -> float:
    try:
        if isinstance(raw, bool) or not isinstance(raw, int | float | str) or not str(raw).isascii():
            raise ValueError
        return float(raw)
    except ValueError:
        raise DoctorError(f"{place}: a number is expected, not {_shown(raw)}") from None


def _switch(key: Key, raw: object, place: Place) -> bool:
    if not isinstance(raw, bool):
        raise DoctorError(f"{place}: true or false is expected, not {_shown(raw)}")
    return raw


def _text(key: Key, raw: object, place: Place) -> str:
    if not isinstance(raw, str):
        raise DoctorError(f"{place}: text is expected, not {_shown(raw)}")
    return raw.strip()


def _texts(key: Key, raw: object, place: Place) -> tuple[str, ...]:
    if not isinstance(raw, list) or not all(isinstance(part, str) for part in raw):
        raise DoctorError(f"{place}: a list of texts is expected, not {_shown(raw)}")
    return tuple(raw)


def _choice(key: Key, raw: object, place: Place) -> str:
    word = _text(key, raw, place).lower()
    word = DTYPE_ALIASES.get(word.removeprefix("torch."), word.removeprefix("torch."))
    if word not in key.choices:
        raise DoctorError(
            f"{place}: {raw!r} is not known{did_you_mean(word, key.choices)}",
            hint=f"{key.flag or key.path} is {one_of(key.choices)}",
        )
    return word


def _shown(raw: object) -> str:
    text = str(raw).lower() if isinstance(raw, bool) else repr(raw)
    return text if len(text) <= 60 else text[:57] + "..."


_CONVERTERS: dict[Kind, Callable[[Key, object, Place], object]] = {
    "count": _count,
    "counts": _counts,
    "share": _share,
    "number": _number,
    "switch": _switch,
    "text": _text,
    "texts": _texts,
    "choice": _choice,
}
