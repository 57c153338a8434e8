"""Build the JSON of a report: bytes as integers, unknown values as null with a reason beside them.

Source lines of packages are named by their package; a user's files keep their whole path.
"""

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

from dflash_doctor.records.finding import Finding, Fix, NotExamined
from dflash_doctor.records.plan import ByteBand
from dflash_doctor.records.report import (
    Allocation,
    GpuReport,
    HostNeeds,
    MemoryReport,
    PeakAt,
    ProfileReport,
    Savings,
    WhatIf,
)
from dflash_doctor.records.source import package_source

MAX_CURVE_POINTS = 2_000
"""Points of a curve that the JSON keeps; the highest of each stretch."""


def preflight_json(report: MemoryReport, before: MemoryReport | None = None) -> dict[str, Any]:
    """Build the JSON of a preflight; `before` is the report of the plan that this one mends."""
    return {
        "schema_version": report.schema_version,
        "plan": report.plan_name,
        "plan_fingerprint": report.plan_fingerprint,
        "engine": report.engine,
        "verdict": report.verdict,
        "token_budget": report.token_budget,
        "max_anchors": report.max_anchors,
        "gpus": [_gpu(gpu) for gpu in report.gpus],
        "findings": [_finding(finding) for finding in report.findings],
        "not_examined": _not_examined(report.not_examined),
        "largest_token_budget": report.largest_token_budget,
        "largest_token_budget_reason": report.largest_token_budget_reason,
        "halved_budget": None if report.halved_budget is None else _what_if(report.halved_budget),
        "what_if": [_what_if(cell) for cell in report.what_if],
        "savings": _savings(report.savings),
        "avoided": list(report.avoided),
        "host": _host(report.host),
        "assumptions": list(report.assumptions),
        "versions": dict(report.versions),
        "seconds": report.seconds,
        "before": None if before is None else preflight_json(before),
    }


def profile_json(report: ProfileReport) -> dict[str, Any]:
    """Build the JSON of a profile."""
    return {
        "schema_version": report.schema_version,
        "name": report.name,
        "engine": report.engine,
        "resident_bytes": report.resident_bytes,
        "peak_allocated_bytes": report.peak_allocated_bytes,
        "peak_reserved_bytes": report.peak_reserved_bytes,
        "capacity_bytes": report.capacity_bytes,
        "fits": report.fits,
        "by_category_bytes": dict(report.by_category_bytes),
        "peak_at": _peak_at(report.peak_at),
        "top_allocations": [_allocation(allocation) for allocation in report.top_allocations],
        "findings": [_finding(finding) for finding in report.findings],
        "not_examined": _not_examined(report.not_examined),
        "phases": [{"name": name, "start": start, "stop": stop} for name, start, stop in report.phases],
        "curve": thin_curve(report.curve, MAX_CURVE_POINTS),
        "notes": list(report.notes),
        "versions": dict(report.versions),
        "seconds": report.seconds,
        "settings": _plain(report.settings),
    }


def thin_curve(curve: Sequence[tuple[int, int, int]], limit: int) -> list[list[int]]:
    """Keep at most `limit` points (event, allocated, reserved), the highest of each stretch and the last."""
    if len(curve) <= limit:
        return [list(point) for point in curve]
    stretches = limit - 1
    bounds = [len(curve) * i // stretches for i in range(stretches + 1)]
    kept = [max(curve[start:stop], key=lambda p: (p[1], p[2])) for start, stop in pairwise(bounds)]
    return [list(point) for point in (*kept, curve[-1])]


def _gpu(gpu: GpuReport) -> dict[str, Any]:
    return {
        "index": gpu.index,
        "role": gpu.role,
        "verdict": gpu.verdict,
        "reason": gpu.reason,
        "peak_allocated_bytes": gpu.peak_allocated_bytes,
        "peak_reserved_bytes": gpu.peak_reserved_bytes,
        "outside_bytes": gpu.outside.likely,
        "outside_band": _band(gpu.outside),
        "capacity_bytes": gpu.capacity_bytes,
        "headroom_bytes": gpu.headroom_bytes,
        "resident_bytes": dict(gpu.resident_bytes),
        "features_bytes": gpu.features_bytes,
        "activation_peak_bytes": gpu.activation_peak_bytes,
        "load_peak_bytes": gpu.load_peak_bytes,
        "by_category_bytes": dict(gpu.by_category_bytes),
        "peak_at": _peak_at(gpu.peak_at),
        "failed_request_bytes": gpu.failed_request_bytes,
    }


def _band(band: ByteBand) -> dict[str, Any]:
    return {
        "low_bytes": band.low,
        "likely_bytes": band.likely,
        "high_bytes": band.high,
        "basis": band.basis,
    }


def _peak_at(peak: PeakAt) -> dict[str, Any]:
    return {"module": peak.module, "op": peak.op, "phase": peak.phase, "source": _source(peak.source)}


def _finding(finding: Finding) -> dict[str, Any]:
    return {
        "code": finding.code,
        "name": finding.name,
        "severity": finding.severity,
        "confidence": finding.confidence,
        "gpus": list(finding.gpus),
        "bytes": finding.bytes,
        "module": finding.module,
        "op": finding.op,
        "source": _source(finding.source),
        "message": finding.message,
        "fix": _fix(finding.fix),
    }


def _source(source: str | None) -> str | None:
    return None if source is None else package_source(source)


def _fix(fix: Fix | None) -> dict[str, Any] | None:
    return None if fix is None else {"text": fix.text, "safety": fix.safety, "setting": fix.setting}


def _not_examined(items: Sequence[NotExamined]) -> list[dict[str, str]]:
    return [{"code": item.code, "reason": item.reason} for item in items]


def _what_if(cell: WhatIf) -> dict[str, Any]:
    return {
        "token_budget": cell.token_budget,
        "max_anchors": cell.max_anchors,
        "verdict": cell.verdict,
        "worst_headroom_bytes": cell.worst_headroom_bytes,
    }


def _savings(savings: Savings | None) -> dict[str, Any] | None:
    if savings is None:
        return None
    return {
        "never_made_bytes": savings.never_made_bytes,
        "peak_drop_bytes": list(savings.peak_drop_bytes),
    }


def _host(host: HostNeeds) -> dict[str, Any]:
    return {
        "memory_bytes": host.memory_bytes,
        "checkpoint_disk_bytes": host.checkpoint_disk_bytes,
        "basis": host.basis,
    }


def _allocation(allocation: Allocation) -> dict[str, Any]:
    site = allocation.site
    stack = [package_source(f"{frame.file}:{frame.line}") for frame in site.stack]
    return {
        "bytes": allocation.bytes,
        "shape": list(allocation.shape),
        "dtype": allocation.dtype,
        "category": allocation.category,
        "module": site.module,
        "op": site.op,
        "phase": site.phase,
        "source": stack[0] if stack else None,
        "stack": stack,
    }


def _plain(value: object) -> Any:
    """Reduce a value to what JSON knows; anything else becomes its text."""
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [_plain(item) for item in value]
    return value if value is None or isinstance(value, (bool, int, float, str)) else str(value)
