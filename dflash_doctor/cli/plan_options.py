"""The flags of a plan, one alias a flag; what they mean is in `intake.plan_keys`."""

from pathlib import Path
from typing import Annotated, Any

import typer


def text_option(metavar: str, help: str) -> Any:
    """Declare an option whose text `intake` converts, so that every mistake is shown at once."""
    return typer.Option(metavar=metavar, help=help)


Plan = Annotated[Path | None, typer.Option(metavar="FILE", help="A plan file; flags go over it.")]
Preset = Annotated[
    str | None, text_option("NAME", "A plan that ships: founding-run (the default) or founding-crash.")
]
TokenBudget = Annotated[
    str | None, text_option("TOKENS", "Tokens of a packed row: 65536, 64k (k = 1000), 64Ki (Ki = 1024).")
]
Gpus = Annotated[str | None, text_option("N", "How many GPUs; without it those of this machine, or 8.")]
GpuMemory = Annotated[str | None, text_option("BYTES", "Memory of each: 94.97GiB, 80GB.")]
Gpu = Annotated[
    str | None, text_option("CARD", "Their kind: rtx-pro-6000, h100, h200, a100-40, a100-80, b200, l40s, ...")
]
Targets = Annotated[str | None, text_option("N", "GPUs that run the target.")]
Drafters = Annotated[str | None, text_option("N", "GPUs that train the drafter.")]
Model = Annotated[
    str | None, text_option("MODEL", "The target: a preset, a config.json, its folder, or an id of the hub.")
]
DraftLayers = Annotated[str | None, text_option("N", "Decoder layers of the drafter.")]
LayerIds = Annotated[str | None, text_option("I,J,...", "Target layers whose outputs are the features.")]
BlockSize = Annotated[str | None, text_option("N", "Slots of a block, its anchor included.")]
MaxAnchors = Annotated[str | None, text_option("N", "Blocks of a packed row.")]
Dtype = Annotated[str | None, text_option("DTYPE", "bfloat16, float16 or float32.")]
Optimizer = Annotated[str | None, text_option("NAME", "adamw, adamw-fused or sgd.")]
Loss = Annotated[str | None, text_option("KIND", "ce, kl or ce-teacher.")]
ChannelSlots = Annotated[str | None, text_option("N", "Feature buffers in flight.")]
TargetRows = Annotated[
    str | None, text_option("TOKENS", "Tokens that pass the target in one call; 0: the whole row.")
]
DocumentTokens = Annotated[str | None, text_option("TOKENS", "The longest document.")]
LinearAttention = Annotated[
    str | None, text_option("KIND", "Kernels of Gated DeltaNet layers: fused or fallback.")
]
Recompute = Annotated[str | None, text_option("off|on", "Recompute the drafter's activations.")]
Allocator = Annotated[
    str | None, text_option("CONF", "PYTORCH_CUDA_ALLOC_CONF, such as expandable_segments:True.")
]
Margin = Annotated[str | None, text_option("SHARE", "Share of each GPU that stays free: 4%.")]
TargetStep = Annotated[
    str | None,
    text_option("MODULE:FUNCTION", "Your own target step: function(plan, device) gives (module, step)."),
]
DraftStep = Annotated[str | None, text_option("MODULE:FUNCTION", "Your own draft step.")]
Fix = Annotated[bool, typer.Option("--fix", help="Mend the plan and show it beside what it mends.")]
FixTo = Annotated[Path | None, typer.Option(metavar="FILE", help="Like --fix, and write the mended plan.")]
ReportDir = Annotated[Path, typer.Option(metavar="FOLDER", help="Where the reports are written.")]
NoReport = Annotated[bool, typer.Option("--no-report", help="Write no reports.")]
NoSearch = Annotated[bool, typer.Option("--no-search", help="Skip the largest budget and the what-if grid.")]
