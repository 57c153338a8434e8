"""The main path: from a plan to a forecast, to findings, to a report and a mended plan."""

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from dflash_doctor.analyze.avoided import avoided_waste
from dflash_doctor.analyze.gpus import peak_at, sum_by_category
from dflash_doctor.analyze.host import host_needs
from dflash_doctor.analyze.readers import find_partly_read, find_unread
from dflash_doctor.analyze.replay import replay
from dflash_doctor.analyze.search import largest_fitting
from dflash_doctor.analyze.tuning import savings, state_alone_exceeds, tuned
from dflash_doctor.forecast import Forecast, Forecaster
from dflash_doctor.intake.fingerprint import plan_fingerprint
from dflash_doctor.intake.plan_dump import write_plan_file
from dflash_doctor.records.finding import Finding, NotExamined
from dflash_doctor.records.plan import ProfileRequest, RunPlan, role_of
from dflash_doctor.records.report import MemoryReport, ProfileReport, WhatIf, allocation_of
from dflash_doctor.records.trace import AllocationTrace
from dflash_doctor.render.files import write_report_files
from dflash_doctor.rules.context import RuleContext
from dflash_doctor.rules.registry import run_rules

SEARCH_SECONDS = 15.0
"""How long the search and the grid may look for more: seconds of processor time, so that a busy machine
finds the same."""
GRID_SECONDS = 5.0
"""The part of it that the grid may take."""
TOP_ALLOCATIONS = 10
NOTHING_TO_MEND = "--fix: the plan fits and wastes nothing that a setting could mend"
NOTHING_HELPS = "--fix: no setting of the plan helps, since weights and states alone exceed a card"


@dataclass(frozen=True, slots=True, kw_only=True)
class PreflightOutcome:
    """The forecast that counts, beside that of the plan which it mends."""

    report: MemoryReport
    plan: RunPlan
    before: MemoryReport | None = None
    files: tuple[Path, ...] = ()
    """What was written."""


def preflight(
    plan: RunPlan, *, fix: bool = False, fix_to: Path | None = None, search: bool = True,
    report_dir: Path | None = None, notes: tuple[str, ...] = (),
) -> PreflightOutcome:  # fmt: skip
    """Forecast a plan; with `fix`, also the plan that mends it, written to `fix_to` where given.

    Writes `<plan>.json` and `.md` in `report_dir`. Raises DoctorError where a step cannot be traced.
    """
    started = time.perf_counter()
    forecaster = Forecaster()
    report = examine(plan, forecaster, search=search and not fix, notes=notes, started=started)
    if fix:
        outcome = mend(plan, report, forecaster, search=search, notes=notes, started=started)
    else:
        outcome = PreflightOutcome(report=report, plan=plan)
    if fix_to is not None:
        write_plan_file(outcome.plan, fix_to)
    files = [fix_to] if fix_to is not None else []
    if report_dir is not None:
        files += write_report_files(outcome.report, report_dir, outcome.before)
    return replace(outcome, files=tuple(files))


def examine(
    plan: RunPlan, forecaster: Forecaster, *, search: bool, notes: tuple[str, ...], started: float
) -> MemoryReport:
    """Trace, judge and examine one plan."""
    forecast = forecaster.forecast(plan)
    findings, not_examined = findings_of(plan, forecast)
    largest, reason, cells = None, "not searched (--no-search)", tuple[WhatIf, ...]()
    if search:
        largest, reason, cells = look_further(plan, forecast, forecaster)
    return MemoryReport(
        plan_name=plan.name,
        model_name=plan.model.name,
        plan_fingerprint=plan_fingerprint(plan),
        engine="meta",
        verdict=forecast.verdict,
        gpus=forecast.gpus,
        findings=findings,
        not_examined=not_examined,
        largest_token_budget=largest,
        largest_token_budget_reason=reason,
        what_if=cells,
        savings=None,
        avoided=avoided_waste(plan),
        host=host_needs(plan, forecast.traces),
        assumptions=notes + assumptions_of(plan),
        versions=versions_of(forecast),
        seconds=time.perf_counter() - started,
        token_budget=plan.token_budget,
        max_anchors=plan.max_anchors,
    )


def mend(
    plan: RunPlan, before: MemoryReport, forecaster: Forecaster, *, search: bool, notes: tuple[str, ...],
    started: float,
) -> PreflightOutcome:  # fmt: skip
    """Tune a plan until it fits; leave alone one that needs nothing, or that nothing can help."""

    def look(at: RunPlan, *, search: bool, more: tuple[str, ...] = ()) -> MemoryReport:
        return examine(at, forecaster, search=search, notes=notes + more, started=started)

    if not needs_mending(before):
        return PreflightOutcome(report=look(plan, search=search, more=(NOTHING_TO_MEND,)), plan=plan)
    mended = fit_in(tuned(plan), forecaster, lambda at: look(at, search=False))
    own = tuple(step for step in (plan.target_step, plan.draft_step) if step)
    more = (f"the trainer's own step stands in for {step}, which is not mended" for step in own)
    report = look(mended, search=search, more=tuple(more))
    if report.verdict == "wont-fit" and any(state_alone_exceeds(gpu) for gpu in report.gpus):
        unmended = look(plan, search=search, more=(NOTHING_HELPS,))
        return PreflightOutcome(report=unmended, plan=plan)
    report = replace(
        report,
        savings=savings(before.gpus, report.gpus, before.findings),
        halved_budget=halved(mended, report, forecaster),
    )
    before = replace(before, halved_budget=halved(plan, before, forecaster))
    return PreflightOutcome(report=report, plan=mended, before=before)


def needs_mending(report: MemoryReport) -> bool:
    """Say whether a plan does not fit with its margin, or wastes part of a card that a setting saves."""
    wasteful = any(f.severity != "info" and f.fix is not None and f.fix.setting for f in report.findings)
    return report.verdict != "fits" or wasteful


def fit_in(plan: RunPlan, forecaster: Forecaster, look: Callable[[RunPlan], MemoryReport]) -> RunPlan:
    """Recompute the drafter's activations, then lower the budget, as far as it takes to fit."""
    report = look(plan)
    cramped = any(gpu.role == "drafter" and gpu.verdict == "wont-fit" for gpu in report.gpus)
    if cramped and plan.recompute == "off":
        plan = replace(plan, recompute="on")
        report = look(plan)
    if report.verdict == "wont-fit" and not any(state_alone_exceeds(gpu) for gpu in report.gpus):
        largest, _ = largest_budget(plan, forecaster, lambda: False)
        plan = replace(plan, token_budget=largest) if largest is not None else plan
    return plan


def halved(plan: RunPlan, report: MemoryReport, forecaster: Forecaster) -> WhatIf | None:
    """Judge the plan with half its token budget; None where what is resident alone exceeds a card."""
    if any(state_alone_exceeds(gpu) for gpu in report.gpus):
        return None
    return forecaster.what_if(replace(plan, token_budget=max(plan.token_budget // 2, 1)), plan)


def look_further(
    plan: RunPlan, forecast: Forecast, forecaster: Forecaster
) -> tuple[int | None, str, tuple[WhatIf, ...]]:
    """Fill the grid around the plan, and search the largest token budget that fits."""
    started = time.process_time()

    def is_late(limit: float = SEARCH_SECONDS) -> bool:
        return time.process_time() - started > limit

    if any(state_alone_exceeds(gpu) for gpu in forecast.gpus):
        reason = "weights and states alone exceed a card: shard, quantise or take a larger one"
        return None, reason, ()
    cells: list[WhatIf] = []
    for budget in (plan.token_budget, plan.token_budget // 2, plan.token_budget * 2):
        for anchors in (plan.max_anchors, plan.max_anchors // 2, plan.max_anchors * 2):
            if is_late(GRID_SECONDS) or anchors < 1 or budget < anchors * plan.draft.block_size:
                continue
            cells.append(forecaster.what_if(replace(plan, token_budget=budget, max_anchors=anchors), plan))
    largest, reason = largest_budget(plan, forecaster, is_late)
    return largest, reason, tuple(cells)


def largest_budget(
    plan: RunPlan, forecaster: Forecaster, is_late: Callable[[], bool]
) -> tuple[int | None, str]:
    """Search the largest token budget that fits the plan's cards."""
    smallest = max(plan.max_anchors * plan.draft.block_size, plan.document_tokens or 0)
    return largest_fitting(
        lambda budget: forecaster.probe(replace(plan, token_budget=budget), plan),
        plan.token_budget,
        smallest=smallest,
        is_late=is_late,
    )


def findings_of(plan: RunPlan, forecast: Forecast) -> tuple[tuple[Finding, ...], tuple[NotExamined, ...]]:
    """Run the rules over a forecast."""
    indices = range(len(forecast.gpus))
    return run_rules(
        RuleContext(
            traces=forecast.traces,
            gpus_of_role={
                role: tuple(i for i in indices if role_of(plan, i) == role) for role in forecast.traces
            },
            plan=plan,
            gpu_reports=forecast.gpus,
            unread={role: find_unread(trace) for role, trace in forecast.traces.items()},
            partly_read={role: find_partly_read(trace) for role, trace in forecast.traces.items()},
        )
    )


def assumptions_of(plan: RunPlan) -> tuple[str, ...]:
    """Say what the forecast takes for granted beside the plan."""
    longest = plan.document_tokens or plan.target_rows or plan.token_budget
    lines = [f"no document is longer than {min(longest, plan.token_budget):,} tokens (--document-tokens)"]
    if plan.model.config.get("linear_num_value_heads") is not None:
        lines.append(f"Gated DeltaNet runs the {plan.linear_attention} kernels (--linear-attention)")
    drafts = {"flex": "compiled flex attention", "sdpa": "SDPA with a dense mask"}[plan.draft.attention]
    lines.append(f"kernels and allocator of torch 2.14; the drafter's attention is {drafts}")
    return tuple(lines)


def versions_of(forecast: Forecast) -> dict[str, str]:
    """Name the versions that the forecast holds for."""
    return {name: text for trace in forecast.traces.values() for name, text in trace.versions.items()}


def profile(request: ProfileRequest) -> ProfileReport:
    """Trace one model's step and report where its bytes go."""
    started = time.perf_counter()
    from dflash_doctor.engines.profile import trace_profile

    trace = trace_profile(request)
    capacity = request.card.usable_bytes - request.card.context.likely if request.card else None
    played = replay(trace, allocator=request.allocator)
    findings, not_examined = profile_findings(trace)
    alive = [trace.storages[i] for i in played.alive_at_peak]
    fits = None
    if capacity is not None:
        fits = replay(trace, cap=capacity, allocator=request.allocator).failed_at is None
    return ProfileReport(
        name=request.model.name,
        engine="meta",
        resident_bytes=replay(trace, allocator=request.allocator, until="load").allocated_bytes,
        peak_allocated_bytes=played.peak_allocated_bytes,
        peak_reserved_bytes=played.peak_reserved_bytes,
        by_category_bytes=sum_by_category(trace, played.alive_at_peak),
        top_allocations=tuple(
            allocation_of(s) for s in sorted(alive, key=lambda s: -s.bytes)[:TOP_ALLOCATIONS]
        ),
        peak_at=peak_at(trace, played.peak_event),
        curve=played.curve,
        phases=tuple((phase.name, phase.start, phase.stop) for phase in trace.phases),
        findings=findings,
        not_examined=not_examined,
        versions=trace.versions,
        seconds=time.perf_counter() - started,
        fits=fits,
        capacity_bytes=request.card.usable_bytes if request.card else None,
        settings=settings_of(request),
    )


def settings_of(request: ProfileRequest) -> dict[str, str | int | float | bool]:
    """Name what a profile ran, by its flags; those that play no part are left out."""
    settings: dict[str, str | int | float | bool] = {
        "mode": request.mode,
        "batch": request.batch,
        "seq": request.seq,
        "dtype": request.dtype,
        "attn": request.attention,
        "allocator": request.allocator,
    }
    if request.mode == "train":
        settings |= {
            "optimizer": request.optimizer,
            "clip": request.clip or 0.0,
            "gradient-checkpointing": request.gradient_checkpointing,
        }
    if request.model.config.get("linear_num_value_heads") is not None:
        settings["linear-attention"] = request.linear_attention
    return settings


def profile_findings(trace: AllocationTrace) -> tuple[tuple[Finding, ...], tuple[NotExamined, ...]]:
    """Run the rules over one model's trace, which is on no GPU of a plan."""
    context = RuleContext(
        traces={"profile": trace},
        unread={"profile": find_unread(trace)},
        partly_read={"profile": find_partly_read(trace)},
        vocab_size=trace.vocab_size,
    )
    return run_rules(context)
