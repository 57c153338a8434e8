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


def read(file: Path) -> str:
    return file.read_text(encoding="utf-8")


def show(faults: dict[Path, list[str]]) -> str:
    return "\n".join(
        f"{file.relative_to(ROOT)} {fault}" for file, listed in faults.items() for fault in listed
    )


def parts_of_the_doctor() -> list[Path]:
    return [
        file
        for file in SOURCES
        if file.is_relative_to(ROOT / "dflash_doctor") and part_of(file) not in ("__init__", DATA)
    ]


def test_every_part_of_the_doctor_has_a_rank():
    assert {part_of(file) for file in parts_of_the_doctor()} <= set(RANKS)


def test_imports_point_one_way():
    assert not show({file: doctor_faults(part_of(file), read(file)) for file in parts_of_the_doctor()})


def test_imports_are_absolute_and_never_of_tests():
    files = [file for file in SOURCES if file.relative_to(ROOT).parts[0] in PACKAGES]
    wrong = {
        file: [
            f"line {found.line}: {found.module}"
            for found in imports(read(file))
            if found.module.startswith((".", "tests"))
        ]
        for file in files
    }
    assert not show(wrong)


def test_presets_hold_data_only():
    files = [file for file in (ROOT / "dflash_doctor" / DATA).rglob("*") if "__pycache__" not in file.parts]
    assert {file.suffix for file in files if file.is_file()} <= {".json", ".toml", ".py"}
    for file in files:
        if file.suffix == ".py":
            assert [type(node) for node in ast.parse(read(file)).body] == [ast.Expr], file


def test_files_are_short():
    lengths = {str(file.relative_to(ROOT)): len(read(file).splitlines()) for file in SOURCES}
    assert not {name: length for name, length in lengths.items() if length > MAX_FILE_LINES}


def test_functions_are_short():
    assert not show({file: long_functions(read(file)) for file in SOURCES})


def test_names_say_their_subject():
    assert not [file for file in SOURCES if any(map(is_vague, file.relative_to(ROOT).with_suffix("").parts))]


def test_the_top_level_is_what_it_should_be():
    if shutil.which("git") is None or not (ROOT / ".git").exists():
        pytest.skip("not a git checkout")
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    top = {name.split("/")[0] for name in listed.splitlines()}
    assert {name for name in top if not name.startswith(".")} <= TOP_LEVEL


@pytest.mark.parametrize(
    ("part", "source", "fault"),
    [
        ("intake", "from dflash_doctor.engines import profile", "line 1: intake imports engines"),
        (
            "records",
            "import dflash_doctor.units\nimport dflash_doctor.rules",
            "line 2: records imports rules",
        ),
        ("units", "from dflash_doctor import records", "line 1: units imports records"),
        ("forecast", "def f():\n    from dflash_doctor import doctor", "line 2: forecast imports doctor"),
        ("rules", "def f():\n    import torch.nn", "line 2: only engines import torch"),
        ("intake", "from transformers import AutoConfig", "line 1: transformers is imported at start"),
        ("engines", "from dflash_train import steps", "line 1: the doctor imports the trainer"),
        ("render", "from dflash_doctor.presets import cards", "line 1: only intake reads presets"),
    ],
)
def test_a_wrong_import_is_found(part, source, fault):
    assert doctor_faults(part, source) == [fault]


@pytest.mark.parametrize(
    ("part", "source"),
    [
        ("cli", "from dflash_doctor import __version__, doctor\nfrom dflash_doctor.rules import registry"),
        ("engines", "import torch\nfrom dflash_doctor.engines.meta import mode"),
        ("intake", "def f():\n    from transformers import AutoConfig"),
        ("intake", "from dflash_doctor import presets"),
    ],
)
def test_right_imports_pass(part, source):
    assert not doctor_faults(part, source)


def test_a_long_function_is_found():
    body = "    a = 1\n" * MAX_BODY_LINES
    assert not long_functions(f"def f(\n    b,\n    c,\n):\n{body}")
    assert long_functions(f"def f():\n{body}    b = 1\n") == [f"line 1: f has {MAX_BODY_LINES + 1} lines"]


def test_a_vague_name_is_found():
    assert is_vague("memory_utils")
    assert not is_vague("utilisation")
