"""`dflash-doctor profile`: where the bytes of one model's step go."""

import sys
from contextlib import redirect_stdout
from typing import Annotated

import typer

from dflash_doctor.cli.options import (
    EXIT_FAILS,
    EXIT_FITS,
    Engine,
    EngineOption,
    FailOnOption,
    Format,
    FormatOption,
    check_fail_on,
    fails,
)


def profile(
    config: Annotated[
        str, typer.Option(metavar="MODEL", help="A config.json, its folder, an id of the hub, or a preset.")
    ],
    mode: Annotated[
        str, typer.Option(metavar="forward|body|train", help="What is run; body leaves lm_head out.")
    ] = "forward",
    batch: Annotated[str, typer.Option(metavar="N", help="Sequences of a step.")] = "1",
    seq: Annotated[
        str, typer.Option(metavar="TOKENS", help="Tokens of a sequence: 4096, 64k, 64Ki.")
    ] = "4096",
    dtype: Annotated[str, typer.Option(metavar="DTYPE", help="bfloat16, float16 or float32.")] = "bfloat16",
    attn: Annotated[str, typer.Option(metavar="sdpa|eager", help="Attention.")] = "sdpa",
    optimizer: Annotated[
        str | None,
        typer.Option(metavar="adamw|adamw-fused|sgd", help="For --mode train; adamw without it."),
    ] = None,
    clip: Annotated[
        float | None, typer.Option(metavar="NORM", help="Clip the gradients' norm, for --mode train.")
    ] = None,
    gradient_checkpointing: Annotated[
        bool, typer.Option("--gradient-checkpointing", help="Recompute activations, for --mode train.")
    ] = False,
    linear_attention: Annotated[
        str, typer.Option(metavar="fused|fallback", help="Kernels of Gated DeltaNet layers.")
    ] = "fused",
    gpu: Annotated[
        str | None,
        typer.Option(metavar="CARD", help="A card of the card table; without it, no limit of memory."),
    ] = None,
    allocator: Annotated[str, typer.Option(metavar="CONF", help="PYTORCH_CUDA_ALLOC_CONF.")] = "",
    fail_on: FailOnOption = None,
    engine: EngineOption = Engine.meta,
    format: FormatOption = Format.text,
) -> int:
    """Trace one model's forward pass or training step and show where the bytes go."""
    from dflash_doctor.cli.show import progress, show_profile, tell
    from dflash_doctor.intake.profile_flags import ProfileFlags, profile_from_flags

    failing = check_fail_on(fail_on)
    asked = profile_from_flags(
        ProfileFlags(
            config=config,
            mode=mode,
            batch=batch,
            seq=seq,
            dtype=dtype,
            attn=attn,
            optimizer=optimizer,
            clip=clip,
            gradient_checkpointing=gradient_checkpointing,
            linear_attention=linear_attention,
            gpu=gpu,
            allocator=allocator,
        )
    )
    tell(asked.notes)
    with redirect_stdout(sys.stderr), progress(f"tracing {asked.request.model.name}"):
        from dflash_doctor import doctor

        report = doctor.profile(asked.request)
    show_profile(report, format)
    return EXIT_FAILS if report.fits is False or fails(report.findings, failing) else EXIT_FITS
