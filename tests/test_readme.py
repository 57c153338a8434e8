"""Hold the README to the programs: every command line in it parses, and every command is in it."""

import re
import shlex
from pathlib import Path

import pytest
import typer

from dflash_doctor.cli import app as doctor_app
from dflash_train.cli import app as train_app

README = (Path(__file__).parents[1] / "README.md").read_text(encoding="utf-8")
PROGRAMS = {
    "dflash-doctor": typer.main.get_command(doctor_app),
    "dflash-train": typer.main.get_command(train_app),
}
SEPARATORS = {"&&", "||", ";", "|", "&"}


def bash_blocks(text: str) -> list[str]:
    """Take the fenced bash blocks out of a Markdown text."""
    return re.findall(r"^```bash\n(.*?)^```$", text, flags=re.MULTILINE | re.DOTALL)


def commands(block: str) -> list[list[str]]:
    """Split a block into commands, each a list of words; comments are left out."""
    found: list[list[str]] = []
    for line in block.replace("\\\n", " ").splitlines():
        words: list[str] = []
        for word in [*shlex.split(line, comments=True), ";"]:
            if word in SEPARATORS:
                found.extend([words] if words else [])
                words = []
            else:
                words.append(word)
    return found


def own_commands(text: str) -> list[list[str]]:
    """List the commands of a text's bash blocks that call this project's programs."""
    return [words for block in bash_blocks(text) for words in commands(block) if words[0] in PROGRAMS]


def parse(words: list[str]) -> None:
    """Parse a command line as its program does, without running it; raise what the program shows."""
    program, *rest = words
    group = PROGRAMS[program]
    if rest and not rest[0].startswith("-"):
        command = group.commands[rest[0]]  # type: ignore[attr-defined]
        command.make_context(f"{program} {rest[0]}", rest[1:])
    else:
        group.make_context(program, rest)


def command_under(heading: str) -> str:
    """Give the first bash block of a section."""
    section = README.split(f"\n## {heading}\n", 1)[1].split("\n## ", 1)[0]
    return bash_blocks(section)[0].strip()


@pytest.mark.parametrize("words", own_commands(README), ids=" ".join)
def test_every_command_line_parses(words):
    parse(words)


@pytest.mark.parametrize(
    "line",
    [
        "dflash-doctor preflite",
        "dflash-doctor preflight --token-budgets 65536",
        "dflash-doctor preflight --format xml",
        "dflash-doctor profile --seq 4096",
        "dflash-doctor explain",
        "dflash-train smoke --step 3",
    ],
)
def test_a_wrong_command_line_is_found(line):
    with pytest.raises(Exception, match=r"preflite|such option|xml|[Mm]issing"):
        parse(shlex.split(line))


def test_every_command_is_mentioned():
    for program, group in PROGRAMS.items():
        for name in group.commands:  # type: ignore[attr-defined]
            assert f"{program} {name}" in README


def test_mentioned_commands_and_flags_exist():
    """Look at inline code too: `dflash-doctor NAME` and `--flag`."""
    for program, name in re.findall(r"`(dflash-\w+) ([a-z-]+)", README):
        assert name in PROGRAMS[program].commands, f"{program} {name}"  # type: ignore[attr-defined]
    outside = re.sub(r"^```bash\n.*?^```$", "", README, flags=re.MULTILINE | re.DOTALL)
    known = {
        option
        for group in PROGRAMS.values()
        for command in group.commands.values()  # type: ignore[attr-defined]
        for parameter in command.params
        for option in parameter.opts
    }
    mentioned = set(re.findall(r"`(--[a-z-]+)", outside))
    assert mentioned <= known | {"--help", "--version"}


def test_set_up_is_two_commands():
    assert command_under("Install and forecast") == (
        "pip install . && dflash-doctor preflight --token-budget 65536"
    )
    assert command_under("Test") == "pip install '.[dev]' && pytest"


def test_blocks_are_split_into_commands():
    text = "```bash\na --b 1 && c 'd e'   # f\n\ng \\\n  h | i\n```\n"
    assert commands(bash_blocks(text)[0]) == [["a", "--b", "1"], ["c", "d e"], ["g", "h"], ["i"]]
