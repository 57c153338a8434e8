"""The flags of `profile`: one model's step on one GPU."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from typing import Any, get_args

from dflash_doctor.errors import DoctorError
from dflash_doctor.intake.allocator_conf import allocator_notes, check_allocator
from dflash_doctor.intake.cards import card_named
from dflash_doctor.intake.models import missing_dimensions, resolve_model
from dflash_doctor.intake.plan_checks import lacks_dtype
from dflash_doctor.intake.plan_keys import ATTENTIONS, DTYPES, OPTIMIZERS, Key
from dflash_doctor.intake.plan_values import convert
from dflash_doctor.intake.settings import Place, Problems
from dflash_doctor.records.plan import LinearAttention, ProfileMode, ProfileRequest
from dflash_doctor.units import parse_count

DEFAULT_OPTIMIZER = "adamw"


@dataclass(frozen=True, slots=True, kw_only=True)
class ProfileFlags:
    """The flags of a profile as they were typed."""

    config: str
    mode: str = "forward"
    batch: str = "1"
    seq: str = "4096"
    dtype: str = "bfloat16"
    attn: str = "sdpa"
    optimizer: str | None = None
    clip: float | None = None
    gradient_checkpointing: bool = False
    linear_attention: str = "fused"
    gpu: str | None = None
    allocator: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProfileInput:
    """A request, and what must be said aloud about how it came about."""

    request: ProfileRequest
    notes: tuple[str, ...] = ()


def profile_from_flags(flags: ProfileFlags) -> ProfileInput:
    """Build the request; raise one DoctorError with every mistake."""
    problems = Problems()
    read: dict[str, Any] = {}
    for flag, name, convert_it in _readers(flags):
        try:
            read[name] = convert_it()
        except DoctorError as error:
            problems.add_error(error, Place(key=flag))
    _check(flags, read, problems)
    problems.raise_if_any("the command")
    request = ProfileRequest(
        **read,
        clip=flags.clip,
        gradient_checkpointing=flags.gradient_checkpointing,
        allocator=flags.allocator,
    )
    return ProfileInput(request=request, notes=_notes(request, flags))


def _readers(flags: ProfileFlags) -> Iterable[tuple[str, str, Callable[[], object]]]:
    """Give flag, field and reader of each flag that can be refused."""
    yield "--config", "model", lambda: resolve_model(flags.config, flag="--config")
    for flag, name, text, choices in (
        ("--mode", "mode", flags.mode, get_args(ProfileMode)),
        ("--dtype", "dtype", flags.dtype, DTYPES),
        ("--attn", "attention", flags.attn, ATTENTIONS),
        ("--optimizer", "optimizer", flags.optimizer or DEFAULT_OPTIMIZER, OPTIMIZERS),
        ("--linear-attention", "linear_attention", flags.linear_attention, get_args(LinearAttention)),
    ):
        key = Key(path=flag, field=name, kind="choice", comment="", flag=flag, choices=choices)
        yield flag, name, partial(convert, key, text, Place(key=flag))
    yield "--batch", "batch", partial(parse_count, flags.batch, flag="--batch", is_size=False)
    yield "--seq", "seq", partial(parse_count, flags.seq, flag="--seq")
    yield "--gpu", "card", lambda: card_named(flags.gpu) if flags.gpu is not None else None


def _check(flags: ProfileFlags, read: dict[str, Any], problems: Problems) -> None:
    if flags.clip is not None and not 0 < flags.clip < float("inf"):
        problems.add("--clip", f"{flags.clip} is not above zero")
    wrong = check_allocator(flags.allocator)
    if wrong:
        problems.add("--allocator", wrong)
    card, dtype = read.get("card"), read.get("dtype")
    lack = lacks_dtype(card, dtype) if card and dtype else None
    if lack:
        problems.add("--dtype", lack, "pass --dtype float16 or --dtype float32, or another --gpu")


def _notes(request: ProfileRequest, flags: ProfileFlags) -> tuple[str, ...]:
    notes = list(allocator_notes(request.allocator))
    missing = missing_dimensions(request.model.config)
    if missing:
        kind = request.model.config["model_type"]
        notes.append(f"the configuration {missing}: the defaults of {kind} are taken")
    given = {
        "--clip": flags.clip is not None,
        "--gradient-checkpointing": flags.gradient_checkpointing,
        "--optimizer": flags.optimizer is not None,
    }
    if request.mode != "train":
        notes += [
            f"{flag} plays no part in --mode {request.mode}; --mode train has it"
            for flag in given
            if given[flag]
        ]
    return tuple(notes)
