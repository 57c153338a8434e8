"""The program `dflash-train`: its commands and its version."""

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, NamedTuple

import typer

from dflash_doctor import __version__
from dflash_doctor.cli.program import leave, new_app, run_app
from dflash_doctor.errors import DoctorError

EXIT_DONE = 0
EXIT_FAILED = 1

app = new_app()


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"dflash-train {__version__}")
        raise typer.Exit


@app.callback(invoke_without_command=True)
def _program(
    context: typer.Context,
    version: Annotated[
        bool, typer.Option("--version", is_eager=True, callback=_print_version, help="Print the version.")
    ] = False,
) -> None:
    """Train DFlash drafters against a frozen target.

    Exit codes: 0 done; 1 the steps failed; 2 bad usage or input; 3 an internal error.
    """
    if context.invoked_subcommand is None:
        typer.echo(context.get_help(), err=True)
        raise typer.Exit(2)


class CountFlag(NamedTuple):
    """A flag that is read as a count, and its least value."""

    text: str
    minimum: int = 1


@app.command()
def smoke(
    model: Annotated[
        str | None,
        typer.Option(
            metavar="MODEL",
            help="The target: a preset, a config.json, its folder, or an id of the hub; never its weights.  "
            "[default: a tiny Qwen3]",
        ),
    ] = None,
    tokens: Annotated[
        str, typer.Option(metavar="TOKENS", help="Tokens of the packed row: 512, 64k, 64Ki.")
    ] = "512",
    anchors: Annotated[str, typer.Option(metavar="N", help="Blocks of the packed row.")] = "16",
    block_size: Annotated[
        str, typer.Option(metavar="N", help="Slots of a block, its anchor included.")
    ] = "8",
    draft_layers: Annotated[str, typer.Option(metavar="N", help="Decoder layers of the drafter.")] = "2",
    loss: Annotated[str, typer.Option(metavar="KIND", help="ce, kl or ce-teacher.")] = "ce",
    steps: Annotated[str, typer.Option(metavar="N", help="Training steps, all on the same row.")] = "3",
    dtype: Annotated[
        str, typer.Option(metavar="DTYPE", help="Of weights and activations: bfloat16 or float32.")
    ] = "bfloat16",
    device: Annotated[
        str | None,
        typer.Option(metavar="DEVICE", help="cpu, cuda or cuda:N.  [default: cuda where there is one]"),
    ] = None,
) -> int:
    """Run the steps that preflight traces, on this machine, with random weights and a synthetic row."""
    values = _read(
        model,
        {
            "tokens": CountFlag(tokens, minimum=2),
            "anchors": CountFlag(anchors),
            "block_size": CountFlag(block_size, minimum=2),
            "draft_layers": CountFlag(draft_layers),
            "steps": CountFlag(steps),
        },
        {"loss": loss.replace("_", "-"), "dtype": dtype},
    )
    from dflash_train.smoke import SmokeSettings, run_smoke

    finite = run_smoke(SmokeSettings(**values), device, typer.echo)
    return EXIT_DONE if finite else EXIT_FAILED


def _read(model: str | None, counts: Mapping[str, CountFlag], choices: Mapping[str, str]) -> dict[str, Any]:
    """Read the flags; raise one DoctorError with every mistake."""
    from dflash_doctor.intake.models import resolve_model
    from dflash_doctor.intake.plan_keys import DTYPE_ALIASES
    from dflash_doctor.intake.settings import Place, Problems, did_you_mean, one_of
    from dflash_doctor.units import parse_count

    known = {"loss": ("ce", "kl", "ce-teacher"), "dtype": ("bfloat16", "float32")}
    problems = Problems()
    values: dict[str, Any] = {"model": None}
    for name, (text, minimum) in counts.items():
        flag = "--" + name.replace("_", "-")
        try:
            values[name] = parse_count(text, flag=flag, minimum=minimum)
        except DoctorError as error:
            problems.add_error(error, Place(key=flag))
    for name, text in choices.items():
        word = DTYPE_ALIASES.get(text.strip().lower(), text.strip().lower())
        if word not in known[name]:
            near = did_you_mean(word, known[name])
            problems.add(f"--{name}", f"{text!r} is not known{near}", f"--{name} is {one_of(known[name])}")
        values[name] = word
    try:
        values["model"] = None if model is None else resolve_model(model, flag="--model")
    except DoctorError as error:
        problems.add_error(error, Place(key="--model"))
    few, many = values.get("tokens"), values.get("anchors")
    if few and many and many > few:
        problems.add("--anchors", f"{many:,} anchors are more than the {few:,} tokens of the row")
    problems.raise_if_any("the command")
    return values


def main() -> None:
    """Run the program and leave with its exit code."""
    leave(app, "dflash-train")


def run(arguments: Sequence[str]) -> int:
    """Run one command line and give its exit code."""
    return run_app(app, "dflash-train", arguments)
