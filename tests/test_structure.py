"""Hold the shape of the project: who imports whom, how long files and functions are, what lies where."""

import ast
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGES = ("dflash_doctor", "dflash_train")
SOURCES = sorted(file for folder in (*PACKAGES, "tests") for file in (ROOT / folder).rglob("*.py"))

# A part imports itself and parts of a lower rank, so rooms (rank 3) don't import each other.
RANKS = {
    "errors": 0,
    "units": 1,
    "records": 2,
    "intake": 3,
    "engines": 3,
    "analyze": 3,
    "rules": 3,
    "render": 3,
    "forecast": 4,
    "doctor": 5,
    "cli": 6,
}
DATA = "presets"
LATE = ("transformers", "pandas")

MAX_FILE_LINES = 350
MAX_BODY_LINES = 45
VAGUE_WORDS = {"util", "utils", "helper", "helpers", "manager", "managers"}
TOP_LEVEL = {"pyproject.toml", "dflash_doctor", "dflash_train", "tests", "reports", "README.md", "LICENSE"}


@dataclass(frozen=True)
class Import:
    """One imported module: `dflash_doctor.records.plan`, and whether importing the file imports it."""

    module: str
    line: int
    at_start: bool


def imports(source: str) -> Iterator[Import]:
    """Find every import of a source text, inside functions too; names of a package count as modules."""
    yield from _imports(ast.parse(source), at_start=True)


def _imports(node: ast.AST, *, at_start: bool) -> Iterator[Import]:
    if isinstance(node, ast.Import):
        for alias in node.names:
            yield Import(alias.name, node.lineno, at_start)
    elif isinstance(node, ast.ImportFrom):
        base = "." * node.level + (node.module or "")
        for alias in node.names:
            yield Import(f"{base}.{alias.name}", node.lineno, at_start)
    in_function = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
    for_types = isinstance(node, ast.If) and ast.unparse(node.test).endswith("TYPE_CHECKING")
    for child in ast.iter_child_nodes(node):
        yield from _imports(child, at_start=at_start and not in_function and not for_types)


def doctor_faults(part: str, source: str) -> list[str]:
    """List the imports that a part of dflash_doctor must not have."""
    faults = []
    for found in imports(source):
        package, _, rest = found.module.partition(".")
        other = rest.partition(".")[0]
        if package == "dflash_train":
            faults.append(f"line {found.line}: the doctor imports the trainer")
        elif package == "torch" and part != "engines":
            faults.append(f"line {found.line}: only engines import torch")
        elif package in LATE and found.at_start and part != "engines":
            faults.append(f"line {found.line}: {package} is imported at start")
        elif package == "dflash_doctor" and other == DATA and part != "intake":
            faults.append(f"line {found.line}: only intake reads presets")
        elif package == "dflash_doctor" and other in RANKS and not _may_import(part, other):
            faults.append(f"line {found.line}: {part} imports {other}")
    return faults


def _may_import(part: str, other: str) -> bool:
    return part == other or RANKS[other] < RANKS[part]


def part_of(file: Path) -> str:
    """Name the part of a package that a file belongs to: a folder or a module."""
    return file.relative_to(ROOT).with_suffix("").parts[1]


def long_functions(source: str) -> list[str]:
    """List the functions whose body, docstring included, has too many lines."""
    long = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            lines = (node.end_lineno or node.lineno) - node.body[0].lineno + 1
            if lines > MAX_BODY_LINES:
                long.append(f"line {node.lineno}: {node.name} has {lines} lines")
    return long


def is_vague(name: str) -> bool:
    """Tell whether a module's name says nothing of its subject."""
    return bool(VAGUE_WORDS & set(name.lower().split("_")))


def of_all(files: list[Path], check: str) -> dict[str, list[str]]:
    """Run a check that takes a source text over files; give the faults by file."""
    found = {str(file.relative_to(ROOT)): CHECKS[check](file) for file in files}
    return {name: faults for name, faults in found.items() if faults}


CHECKS = {
    "doctor": lambda file: doctor_faults(part_of(file), file.read_text(encoding="utf-8")),
    "length": lambda file: long_functions(file.read_text(encoding="utf-8")),
    "relative": lambda file: [
        f"line {found.line}: {found.module}"
        for found in imports(file.read_text(encoding="utf-8"))
        if found.module.startswith(".")
    ],
}
