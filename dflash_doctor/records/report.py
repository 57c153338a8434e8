"""The forecast: what each GPU will hold, where its peak is, and whether it fits."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from dflash_doctor.records.finding import Finding, NotExamined
from dflash_doctor.records.plan import ByteBand
from dflash_doctor.records.trace import Site, Storage

Verdict = Literal["fits", "tight", "wont-fit", "unknown"]

SCHEMA_VERSION = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Replay:
    """A trace run through the allocator.

    `failed_at` is the event whose request could not be had under the cap, None where all could.
    `curve` is (event, allocated, reserved) at every event that moved either.
    """

    peak_allocated_bytes: int
    peak_reserved_bytes: int
    peak_event: int
    """Event of the first allocated peak."""
    alive_at_peak: tuple[int, ...]
    """Ids of the storages alive at the allocated peak."""
    reserved_at_peak_bytes: int
    failed_at: int | None
    failed_request_bytes: int | None
    num_retries: int
    curve: tuple[tuple[int, int, int], ...]
    allocated_bytes: int = 0
    """At the end, or where the request failed."""
    reserved_bytes: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class PeakAt:
    """The moment of a peak; `source` is `file:line`."""

    module: str
    op: str
    phase: str
    source: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuReport:
    """The forecast of one GPU, in bytes.

    `headroom_bytes` = capacity - likely outside - reserved peak; negative where it does not fit. The
    reserved peak is that of the run that decided: capped where only giving cached memory back makes it fit.
    `capacity_bytes` is what the process can have: the card's memory less what others hold.
    """

    index: int
    role: str
    peak_allocated_bytes: int
    peak_reserved_bytes: int
    outside: ByteBand
    capacity_bytes: int
    headroom_bytes: int
    resident_bytes: Mapping[str, int]
    features_bytes: int
    activation_peak_bytes: int
    by_category_bytes: Mapping[str, int]
    peak_at: PeakAt
    load_peak_bytes: int
    verdict: Verdict
    reason: str
    failed_request_bytes: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class HostNeeds:
    """What the machine around the GPUs must have; bytes with what they rest on."""

    memory_bytes: int
    checkpoint_disk_bytes: int
    basis: str


@dataclass(frozen=True, slots=True, kw_only=True)
class WhatIf:
    """One cell of the grid: the verdict at another token budget and number of anchors."""

    token_budget: int
    max_anchors: int
    verdict: Verdict
    worst_headroom_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Savings:
    """What the fix saves, told twice: bytes of tensors never made, and the drop of each GPU's peak."""

    never_made_bytes: int
    peak_drop_bytes: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryReport:
    """The whole answer of a preflight."""

    plan_name: str
    plan_fingerprint: str
    engine: str
    verdict: Verdict
    gpus: tuple[GpuReport, ...]
    findings: tuple[Finding, ...]
    not_examined: tuple[NotExamined, ...]
    largest_token_budget: int | None
    largest_token_budget_reason: str
    what_if: tuple[WhatIf, ...]
    savings: Savings | None
    avoided: tuple[str, ...]
    """Waste that the plan does not have, one line each."""
    host: HostNeeds
    assumptions: tuple[str, ...]
    versions: Mapping[str, str]
    seconds: float
    schema_version: int = SCHEMA_VERSION
    model_name: str | None = None
    token_budget: int | None = None
    max_anchors: int | None = None
    halved_budget: WhatIf | None = None
    """The other way out: the same plan with half the token budget."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Allocation:
    """One allocation as it is shown: bytes and where they come from."""

    bytes: int
    shape: tuple[int, ...]
    dtype: str
    category: str
    site: Site


def allocation_of(storage: Storage) -> Allocation:
    """Reduce a storage to what a reader wants of it."""
    return Allocation(
        bytes=storage.bytes,
        shape=storage.shape,
        dtype=storage.dtype,
        category=storage.category,
        site=storage.site,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ProfileReport:
    """The answer of `profile`: one model's step."""

    name: str
    engine: str
    resident_bytes: int
    peak_allocated_bytes: int
    peak_reserved_bytes: int
    by_category_bytes: Mapping[str, int]
    top_allocations: tuple[Allocation, ...]
    peak_at: PeakAt
    curve: tuple[tuple[int, int, int], ...]
    phases: tuple[tuple[str, int, int], ...]
    findings: tuple[Finding, ...]
    not_examined: tuple[NotExamined, ...]
    versions: Mapping[str, str]
    seconds: float
    fits: bool | None = None
    """None where no card was named."""
    capacity_bytes: int | None = None
    notes: tuple[str, ...] = ()
    schema_version: int = SCHEMA_VERSION
    settings: Mapping[str, str | int | float | bool] = field(default_factory=dict)
    """What was run, by the names of the flags."""
