"""Read a plan file: TOML to settings, every mistake with its line, and settings to a RunPlan."""

import re
import tomllib
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from dflash_doctor.errors import DoctorError
from dflash_doctor.intake.placement import named_cards
from dflash_doctor.intake.plan_build import build_plan
from dflash_doctor.intake.plan_cards import read_cards
from dflash_doctor.intake.plan_keys import (
    FLAG_OF_PATH,
    KEY_OF_PATH,
    MAX_GPUS,
    MODEL_REFUSED,
    TABLES,
    TRAINER_TABLES,
    keys_of_table,
)
from dflash_doctor.intake.plan_lines import line_of, lines_of_keys
from dflash_doctor.intake.plan_values import convert
from dflash_doctor.intake.presets import plan_preset_text
from dflash_doctor.intake.settings import Place, Problems, Setting, Settings, did_you_mean
from dflash_doctor.records.plan import RunPlan
from dflash_doctor.units import parse_bytes, parse_count

MAX_DEPTH = 50


def read_plan_file(path: Path) -> RunPlan:
    """Read a plan file on its own; `cards` is empty where it names no GPUs.

    Raises one DoctorError with every mistake and its line.
    """
    problems = Problems()
    settings = settings_of_file(path, problems)
    choice = named_cards(settings, problems)
    plan = build_plan(settings, problems, choice.cards if choice else ())
    problems.raise_if_any(str(path))
    assert plan is not None
    return plan


def settings_of_file(path: Path, problems: Problems) -> Settings:
    """Read the settings of a plan file; the name is the file's where it gives none."""
    try:
        text = path.read_text(encoding="utf-8-sig")
    except FileNotFoundError:
        raise DoctorError(
            f"--plan: there is no file {path}", hint="--preset names a plan that ships"
        ) from None
    except (OSError, UnicodeDecodeError) as error:
        raise DoctorError(f"--plan: {path} cannot be read: {error}") from None
    settings = _settings_of_text(text, str(path), path.parent, problems)
    place = Place(key="name", file=str(path))
    settings.setdefault("name", Setting(value=path.stem, place=place))
    return settings


def settings_of_preset(name: str, problems: Problems) -> Settings:
    """Read the settings of a plan that ships with the package; their places are the flags over them."""
    settings = _settings_of_text(plan_preset_text(name), f"preset {name}", Path(), problems)
    return {
        path: Setting(value=setting.value, place=Place(key=FLAG_OF_PATH.get(path, path)))
        for path, setting in settings.items()
    }


def _settings_of_text(text: str, file: str, folder: Path, problems: Problems) -> Settings:
    try:
        document: dict[str, Any] | None = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise _syntax_error(error, file, text) from None
    except RecursionError:
        document = None
    if document is None or _nests_too_deeply(document):
        raise DoctorError(f"{file}: not valid TOML: it nests too deeply") from None
    reader = _Reader(file, folder, lines_of_keys(text.replace("\r\n", "\n")), problems)
    return reader.read(document)


def _nests_too_deeply(document: object) -> bool:
    layer, depth = [document], 0
    while layer and depth <= MAX_DEPTH:
        inner = [list(part.values()) if isinstance(part, dict) else part for part in layer]
        layer = [part for parts in inner if isinstance(parts, list) for part in parts]
        depth += 1
    return bool(layer)


def _syntax_error(error: tomllib.TOMLDecodeError, file: str, text: str) -> DoctorError:
    match = re.search(r"\s*\(at line (\d+), column (\d+)\)", str(error))
    line = int(match[1]) if match else text.count("\n") + 1
    message = re.sub(r"\s*\(at .*\)$", "", str(error))
    if message.startswith(("Cannot overwrite", "Cannot declare", "Cannot mutate", "Duplicate")):
        message = "the key or table is there twice"
    written = text.splitlines()[line - 1].strip() if 0 < line <= len(text.splitlines()) else ""
    shown = f": {written}" if written else ""
    hint = 'texts need quotes, as in dtype = "bfloat16"' if message.startswith("Invalid value") else None
    return DoctorError(f"{file}:{line}: not valid TOML: {message}{shown}", hint=hint)


class _Reader:
    """Walk a TOML document once, converting what is known and noting what is not."""

    def __init__(self, file: str, folder: Path, lines: dict[str, int], problems: Problems) -> None:
        self.file = file
        self.folder = folder
        self.lines = lines
        self.problems = problems
        self.settings: Settings = {}

    def read(self, document: dict[str, Any]) -> Settings:
        for name, value in document.items():
            if name in TRAINER_TABLES:
                continue
            if name == "name":
                self._keep("name", value, text=True)
            elif name not in TABLES:
                self._read_stray(name)
            elif not isinstance(value, dict):
                self.problems.add(self._place(name), f"it is a table: write [{name}]")
                self._refuse_model(name)
            else:
                self._read_table(name, value)
        return self.settings

    def _read_stray(self, name: str) -> None:
        homes = [f"[{table}]" for table in TABLES if name in keys_of_table(table)]
        if homes:
            self.problems.add(self._place(name), f"it belongs in {' or '.join(homes)}")
        else:
            known = (*TABLES, "name", *TRAINER_TABLES)
            self._unknown(name, known, "the tables are " + ", ".join(TABLES))

    def _refuse_model(self, path: str) -> None:
        """Remember that a model was named, though in vain."""
        if path.partition(".")[0] == "model":
            self.settings[MODEL_REFUSED] = Setting(value=None, place=self._place(path))

    def _read_table(self, table: str, entries: dict[str, Any]) -> None:
        known = keys_of_table(table)
        for name, value in entries.items():
            path = f"{table}.{name}"
            if name not in known:
                self._unknown(path, known, f"the keys of [{table}] are " + ", ".join(known))
            elif path in KEY_OF_PATH:
                self._try(path, partial(convert, KEY_OF_PATH[path], value, self._place(path)))
            elif path == "placement.gpus":
                flag = str(self._place(path))
                self._try(path, partial(parse_count, value, flag=flag, maximum=MAX_GPUS, is_size=False))
            elif path == "placement.gpu_memory":
                self._try(path, partial(parse_bytes, value, flag=str(self._place(path))))
            elif path == "placement.cards":
                self._try(path, partial(read_cards, value, lambda key: self._place(f"placement.cards.{key}")))
            elif path == "model.config" and isinstance(value, str):
                self._keep(path, value)
                self._keep("model.folder", str(self.folder))
            else:
                structured = {"model.config": dict, "model.null_keys": list}.get(path, str)
                self._keep(path, value, text=not isinstance(value, structured))

    def _keep(self, path: str, value: object, *, text: bool = False) -> None:
        if text and not isinstance(value, str):
            self.problems.add(self._place(path), f"text is expected, not {value!r}")
            self._refuse_model(path)
            return
        self.settings[path] = Setting(value=value, place=self._place(path))

    def _try(self, path: str, read: Callable[[], object]) -> None:
        try:
            self.settings[path] = Setting(value=read(), place=self._place(path))
        except DoctorError as error:
            self.problems.add_error(error, self._place(path))

    def _unknown(self, path: str, known: tuple[str, ...], hint: str) -> None:
        name = path.rpartition(".")[2]
        self.problems.add(self._place(path), f"it is not known{did_you_mean(name, known)}", hint)

    def _place(self, path: str) -> Place:
        return Place(key=path, file=self.file, line=line_of(self.lines, path))
