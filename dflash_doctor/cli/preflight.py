"""`dflash-doctor preflight`: will this run fit, on every GPU, and why not?"""

import sys
from contextlib import redirect_stdout
from pathlib import Path
from typing import TYPE_CHECKING

from dflash_doctor.cli import plan_options as options
from dflash_doctor.cli.options import (
    Engine,
    EngineOption,
    FailOnOption,
    Format,
    FormatOption,
    check_fail_on,
    exit_code,
)

if TYPE_CHECKING:
    from dflash_doctor.intake.plan_flags import PlanFlags


def preflight(
    plan: options.Plan = None,
    preset: options.Preset = None,
    token_budget: options.TokenBudget = None,
    gpus: options.Gpus = None,
    gpu_memory: options.GpuMemory = None,
    gpu: options.Gpu = None,
    targets: options.Targets = None,
    drafters: options.Drafters = None,
    model: options.Model = None,
    draft_layers: options.DraftLayers = None,
    layer_ids: options.LayerIds = None,
    block_size: options.BlockSize = None,
    max_anchors: options.MaxAnchors = None,
    dtype: options.Dtype = None,
    optimizer: options.Optimizer = None,
    loss: options.Loss = None,
    channel_slots: options.ChannelSlots = None,
    target_rows: options.TargetRows = None,
    document_tokens: options.DocumentTokens = None,
    linear_attention: options.LinearAttention = None,
    recompute: options.Recompute = None,
    allocator: options.Allocator = None,
    margin: options.Margin = None,
    target_step: options.TargetStep = None,
    draft_step: options.DraftStep = None,
    fix: options.Fix = False,
    fix_to: options.FixTo = None,
    report_dir: options.ReportDir = Path("reports"),
    no_report: options.NoReport = False,
    no_search: options.NoSearch = False,
    fail_on: FailOnOption = None,
    engine: EngineOption = Engine.meta,
    format: FormatOption = Format.text,
) -> int:
    """Forecast the memory of a run on every GPU, say why it would not fit, and mend it.

    Without flags: the founding run, tuned, on the GPUs of this machine, or on 8 of 94.97 GiB.
    """
    given = dict(locals())
    from dflash_doctor.intake.plan_flags import PlanFlags

    flags = PlanFlags(**{name: given[name] for name in PlanFlags.__dataclass_fields__})
    folder = None if no_report else report_dir
    return _forecast(
        flags, fix=fix, fix_to=fix_to, folder=folder, search=not no_search, fail_on=fail_on, format=format
    )


def _forecast(
    flags: "PlanFlags", *, fix: bool, fix_to: Path | None, folder: Path | None, search: bool,
    fail_on: list[str] | None, format: Format,
) -> int:  # fmt: skip
    """Check everything that can be refused, then trace, then show."""
    from dflash_doctor.cli.show import progress, show_preflight, tell
    from dflash_doctor.intake.plan_flags import plan_from_flags
    from dflash_doctor.intake.report_folder import check_report_folder, check_writable

    failing = check_fail_on(fail_on)
    asked = plan_from_flags(flags)
    tell(asked.notes)
    if folder is not None:
        check_report_folder(folder)
    if fix_to is not None:
        check_writable(fix_to, flag="--fix-to")
    with redirect_stdout(sys.stderr), progress(f"tracing {asked.plan.name}"):
        from dflash_doctor import doctor

        outcome = doctor.preflight(
            asked.plan,
            fix=fix or fix_to is not None,
            fix_to=fix_to,
            search=search,
            report_dir=folder,
            notes=asked.notes,
        )
    show_preflight(outcome, format)
    tell(f"wrote {path}" for path in outcome.files)
    return exit_code(outcome.report.verdict, outcome.report.findings, failing)
