"""Forecast a plan's GPUs: trace each role once, judge it against each kind of card."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal

from dflash_doctor.analyze.fit import Fit, judge, outside_pytorch
from dflash_doctor.analyze.gpus import gpu_report, idle_report
from dflash_doctor.analyze.resize import resize_slots
from dflash_doctor.analyze.search import Probe
from dflash_doctor.engines.roles import find_step, trace_role
from dflash_doctor.intake.fingerprint import plan_fingerprint
from dflash_doctor.records.plan import ByteBand, Card, RunPlan, role_of
from dflash_doctor.records.report import GpuReport, Verdict, WhatIf
from dflash_doctor.records.trace import AllocationTrace

RoleName = Literal["target", "drafter"]
FEW_PIECES = 2
"""Pieces of a row after which a target's memory repeats itself; a probe plays no more of them."""
WORST_FIRST: tuple[Verdict, ...] = ("wont-fit", "unknown", "tight", "fits")


@dataclass(frozen=True, slots=True, kw_only=True)
class Forecast:
    """What the roles of a plan do, and what that means for each of its GPUs."""

    traces: Mapping[str, AllocationTrace]
    gpus: tuple[GpuReport, ...]

    @property
    def verdict(self) -> Verdict:
        """Give the verdict of the worst GPU."""
        return worst([gpu.verdict for gpu in self.gpus])


def worst(verdicts: list[Verdict]) -> Verdict:
    """Give the worst of these verdicts; unknown where there are none."""
    return next((verdict for verdict in WORST_FIRST if verdict in verdicts), "unknown")


class Forecaster:
    """Trace and judge plans that differ little, remembering each role's trace."""

    def __init__(self) -> None:
        self._traces: dict[tuple[RoleName, str], AllocationTrace] = {}
        self._fits: dict[tuple[RoleName, str, Card], Fit] = {}

    def forecast(self, plan: RunPlan) -> Forecast:
        """Forecast every GPU of a plan; steps that are not there are refused before anything is traced."""
        for role in roles_of(plan):
            find_step(plan, role)
        traces: dict[str, AllocationTrace] = {role: self.trace(plan, role) for role in roles_of(plan)}
        first: dict[tuple[str, Card], GpuReport] = {}
        for index, card in enumerate(plan.cards):
            key = (role_of(plan, index), card)
            if key not in first:
                first[key] = self._gpu(plan, traces, index, card)
        gpus = (replace(first[role_of(plan, i), card], index=i) for i, card in enumerate(plan.cards))
        return Forecast(traces=traces, gpus=tuple(gpus))

    def trace(self, plan: RunPlan, role: RoleName) -> AllocationTrace:
        """Trace a role, or take the trace of a plan that differs only in what the role does not see."""
        key = (role, _seen_by(plan, role))
        if key not in self._traces:
            self._traces[key] = trace_role(plan, role)
        return self._traces[key]

    def _gpu(self, plan: RunPlan, traces: Mapping[str, AllocationTrace], index: int, card: Card) -> GpuReport:
        role = role_of(plan, index)
        if role == "idle":
            return idle_report(index, card, outside_pytorch(card, 0))
        fit = self._judge(plan, role, traces[role], card)
        return gpu_report(index, role, traces[role], fit, card, outside_of(plan, role, card))

    def _judge(self, plan: RunPlan, role: RoleName, trace: AllocationTrace, card: Card) -> Fit:
        key = (role, _seen_by(plan, role), card)
        if key not in self._fits:
            self._fits[key] = judge(
                trace,
                capacity=card.usable_bytes,
                outside=outside_of(plan, role, card),
                margin=plan.margin,
                allocator=plan.allocator,
            )
        return self._fits[key]

    def probe(self, plan: RunPlan, known: RunPlan) -> Probe:
        """Judge another budget; a target that runs in pieces is resized from the trace of `known`."""
        fits = self._fits_elsewhere(plan, known)
        spare = [
            fit.headroom_bytes
            + fit.reserved_bytes
            - fit.uncapped.peak_reserved_bytes
            - int(plan.margin * card.usable_bytes)
            for card, fit in fits
        ]
        cached = [fit.uncapped.peak_reserved_bytes - fit.uncapped.peak_allocated_bytes for _, fit in fits]
        return Probe(
            token_budget=plan.token_budget,
            verdict=worst([fit.verdict for _, fit in fits]),
            spare_bytes=min(spare),
            most_spare_bytes=min(left + idle for left, idle in zip(spare, cached, strict=True)),
        )

    def what_if(self, plan: RunPlan, known: RunPlan) -> WhatIf:
        """Judge a plan as a cell of the grid."""
        fits = [fit for _, fit in self._fits_elsewhere(plan, known)]
        return WhatIf(
            token_budget=plan.token_budget,
            max_anchors=plan.max_anchors,
            verdict=worst([fit.verdict for fit in fits]),
            worst_headroom_bytes=min(fit.headroom_bytes for fit in fits),
        )

    def _fits_elsewhere(self, plan: RunPlan, known: RunPlan) -> list[tuple[Card, Fit]]:
        placed = dict.fromkeys((role_of(plan, i), card) for i, card in enumerate(plan.cards))
        return [
            (card, self._judge(plan, role, self._probe_trace(plan, role, known), card))
            for role, card in placed
            if role != "idle"
        ]

    def _probe_trace(self, plan: RunPlan, role: RoleName, known: RunPlan) -> AllocationTrace:
        longest = max(known.target_rows, known.document_tokens or 0)
        in_pieces = known.target_rows > 0 and min(plan.token_budget, known.token_budget) >= longest
        own = plan.target_step is None and plan.target_forward == "body"
        if role == "target" and own and in_pieces:
            few = replace(known, token_budget=min(known.token_budget, FEW_PIECES * longest))
            return resize_slots(self.trace(few, role), few.token_budget, plan.token_budget)
        return self.trace(plan, role)


def roles_of(plan: RunPlan) -> tuple[RoleName, ...]:
    """List the roles that the plan places."""
    counts: dict[RoleName, int] = {"target": plan.num_targets, "drafter": plan.num_drafters}
    return tuple(role for role, count in counts.items() if count)


def outside_of(plan: RunPlan, role: RoleName, card: Card) -> ByteBand:
    """Model what a role has outside PyTorch: each side talks to the other, drafters also to each other."""
    peers = plan.num_drafters if role == "target" else plan.num_targets + plan.num_drafters - 1
    return outside_pytorch(card, peers)


def _seen_by(plan: RunPlan, role: RoleName) -> str:
    """Name what a role sees of a plan: plans of one name have one trace."""
    seen = replace(plan, max_anchors=0) if role == "target" and plan.target_step is None else plan
    return plan_fingerprint(seen)
