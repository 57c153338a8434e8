"""Reports as a founding crash, its fix and a profile would give them."""

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
    Verdict,
    WhatIf,
)
from dflash_doctor.records.trace import Site, SourceLine

GIB = 2**30
CAPACITY = 101_973_261_025
LOGITS = 65_536 * 248_320 * 2
MODELING = "/opt/venv/lib/python3.11/site-packages/transformers/models/qwen3_5/modeling_qwen3_5.py"
OUTSIDE = ByteBand(
    low=round(1.2 * GIB), likely=round(1.5 * GIB), high=round(1.9 * GIB), basis="context and NCCL, modelled"
)


def gib(size: float) -> int:
    return round(size * GIB)


def crash_target(index: int) -> GpuReport:
    return GpuReport(
        index=index,
        role="target",
        peak_allocated_bytes=gib(88.57),
        peak_reserved_bytes=gib(116.72),
        outside=OUTSIDE,
        capacity_bytes=CAPACITY,
        headroom_bytes=CAPACITY - OUTSIDE.likely - gib(116.72),
        resident_bytes={"weights": gib(45.36), "tables": gib(4.74)},
        features_bytes=gib(3.13),
        activation_peak_bytes=gib(35.34),
        by_category_bytes={
            "weights": gib(45.36),
            "tables": gib(4.74),
            "features": gib(3.13),
            "activations": gib(35.34),
        },
        peak_at=PeakAt(module="lm_head", op="aten.mm.default", phase="forward", source=f"{MODELING}:1716"),
        load_peak_bytes=gib(50.1),
        verdict="wont-fit",
        reason="30.31 GiB cannot be had in lm_head (aten.mm.default, forward)",
        failed_request_bytes=LOGITS,
    )


def crash_drafter(index: int = 7) -> GpuReport:
    return GpuReport(
        index=index,
        role="drafter",
        peak_allocated_bytes=gib(105.32),
        peak_reserved_bytes=gib(106.54),
        outside=OUTSIDE,
        capacity_bytes=CAPACITY,
        headroom_bytes=CAPACITY - OUTSIDE.likely - gib(106.54),
        resident_bytes={
            "weights": gib(3.23), "tables": gib(7.1),
            "master_weights": gib(6.45), "optimizer_state": gib(12.9),
        },
        features_bytes=gib(15),
        activation_peak_bytes=gib(60.64),
        by_category_bytes={"weights": gib(3.23), "features": gib(15), "activations": gib(60.64)},
        peak_at=PeakAt(
            module="", op="aten.roll.default", phase="forward", source="/data/scripts/dflash_model.py:52"
        ),
        load_peak_bytes=gib(29.68),
        verdict="wont-fit",
        reason="30.31 GiB cannot be had in the step (aten.roll.default, forward)",
        failed_request_bytes=LOGITS,
    )  # fmt: skip


DF001 = Finding(
    code="DF001",
    name="unused-full-vocab-logits",
    severity="error",
    confidence="proved",
    gpus=(0, 1, 2, 3, 4, 5, 6),
    bytes=LOGITS,
    module="lm_head",
    op="aten.mm.default",
    source=f"{MODELING}:1716",
    message="lm_head output [1, 65536, 248320] is never read: 30.31 GiB",
    fix=Fix(
        text="call the body, `model.model(...)` or `model.base_model(...)`, which gives hidden states "
        "without logits; or pass `logits_to_keep=1`",
        safety="safe",
        setting='target.forward = "body"',
    ),
)
DF002 = Finding(
    code="DF002",
    name="full-sequence-logits",
    severity="error",
    confidence="proved",
    gpus=(7,),
    bytes=LOGITS,
    module="verifier_lm_head",
    op="aten.mm.default",
    source="/data/scripts/dflash_model.py:51",
    message="verifier_lm_head output [1, 65536, 248320]: 8,192 of 65,536 rows read, 12.5 %; "
    "30.31 GiB, and 30.31 GiB again by roll",
    fix=Fix(
        text="select the rows first and project them after, at index - 1 because of the roll: "
        "8,192 rows instead of 65,536",
        safety="safe",
        setting='loss.projection = "selected"',
    ),
)
DF003 = tuple(
    Finding(
        code="DF003",
        name="unchunked-vocab-loss",
        severity="error",
        confidence="proved",
        gpus=(7,),
        bytes=gib(45.47),
        module=None,
        op="aten._log_softmax.default",
        source=f"/data/scripts/dflash_model.py:{line}",
        message="vocabulary log_softmax [1, 8192, 248320] runs in one piece: 7 tensors of this size alive "
        "together, 45.47 GiB",
        fix=Fix(
            text="compute logits, loss and the gradient of the hidden states chunk by chunk of rows, "
            "and keep only that gradient",
            safety="safe",
            setting="loss.chunked = true",
        ),
    )
    for line in (61, 62)
)
DF501 = Finding(
    code="DF501",
    name="fragmentation-gap",
    severity="warning",
    confidence="likely",
    gpus=(0, 1, 2, 3, 4, 5, 6),
    bytes=gib(28.15),
    module=None,
    op=None,
    source=None,
    message="reserved 116.72 GiB for a peak of 88.57 GiB: gap of 28.15 GiB",
    fix=Fix(
        text="set PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True",
        safety="safe",
        setting='--allocator "expandable_segments:True"',
    ),
)
HOST = HostNeeds(memory_bytes=gib(64), checkpoint_disk_bytes=gib(51.8), basis="two checkpoints, modelled")
VERSIONS = {"torch": "2.13.0", "transformers": "5.24.0"}


def _cell(budget: int, anchors: int, verdict: Verdict, spare: float) -> WhatIf:
    return WhatIf(token_budget=budget, max_anchors=anchors, verdict=verdict, worst_headroom_bytes=gib(spare))


def crash_report() -> MemoryReport:
    """The founding crash: 7 targets and a drafter that don't fit."""
    return MemoryReport(
        plan_name="founding-crash",
        plan_fingerprint="6b1f0c2d9a7e",
        engine="meta",
        verdict="wont-fit",
        gpus=(*(crash_target(i) for i in range(7)), crash_drafter()),
        findings=(DF001, DF002, *DF003, DF501),
        not_examined=(NotExamined(code="DF104", reason="no op trace of the drafter"),),
        largest_token_budget=19_456,
        largest_token_budget_reason="the drafter is the limit",
        what_if=(
            _cell(16_384, 256, "fits", 31.75),
            _cell(16_384, 512, "fits", 22.04),
            _cell(32_768, 256, "tight", 2.11),
            _cell(32_768, 512, "wont-fit", -3.4),
            _cell(65_536, 256, "wont-fit", -20.11),
            _cell(65_536, 512, "wont-fit", -23.25),
        ),
        savings=None,
        avoided=(),
        host=HOST,
        assumptions=("the longest document is as long as the row", "no other process uses the GPUs"),
        versions=VERSIONS,
        seconds=9.84,
        token_budget=65_536,
        max_anchors=512,
        halved_budget=WhatIf(
            token_budget=32_768, max_anchors=512, verdict="wont-fit", worst_headroom_bytes=gib(-3.4)
        ),
    )


def _fixed_gpu(index: int, role: str, resident: float, features: float, activations: float) -> GpuReport:
    allocated = gib(resident + features + activations)
    reserved = allocated + gib(0.9)
    return GpuReport(
        index=index,
        role=role,
        peak_allocated_bytes=allocated,
        peak_reserved_bytes=reserved,
        outside=OUTSIDE,
        capacity_bytes=CAPACITY,
        headroom_bytes=CAPACITY - OUTSIDE.likely - reserved,
        resident_bytes={"weights": gib(resident)},
        features_bytes=gib(features),
        activation_peak_bytes=gib(activations),
        by_category_bytes={
            "weights": gib(resident),
            "features": gib(features),
            "activations": gib(activations),
        },
        peak_at=PeakAt(
            module="layers.3.mlp",
            op="aten.mm.default",
            phase="forward",
            source="/home/me/dflash_train/steps.py:88",
        ),
        load_peak_bytes=gib(resident),
        verdict="fits",
        reason="",
    )


def fixed_report() -> MemoryReport:
    """The tuned plan: body, sub-rows, rows selected before they are projected."""
    gpus = (
        *(_fixed_gpu(i, "target", 47.73, 3.13, 1.4) for i in range(7)),
        _fixed_gpu(7, "drafter", 31.9, 6.25, 12.3),
    )
    before = crash_report()
    drops = tuple(
        old.peak_allocated_bytes - new.peak_allocated_bytes
        for old, new in zip(before.gpus, gpus, strict=True)
    )
    return MemoryReport(
        plan_name="founding-crash, fixed",
        plan_fingerprint="e01d44aa0b3c",
        engine="meta",
        verdict="fits",
        gpus=gpus,
        findings=(),
        not_examined=(),
        largest_token_budget=196_608,
        largest_token_budget_reason="",
        what_if=(),
        savings=Savings(never_made_bytes=9 * LOGITS, peak_drop_bytes=drops),
        avoided=("full-vocabulary logits would take 30.31 GiB a target: see --preset founding-crash",),
        host=HOST,
        assumptions=(),
        versions=VERSIONS,
        seconds=11.2,
        token_budget=65_536,
        max_anchors=512,
        halved_budget=WhatIf(
            token_budget=32_768, max_anchors=512, verdict="fits", worst_headroom_bytes=gib(43.1)
        ),
    )


def _allocation(
    size: float, shape: tuple[int, ...], dtype: str, module: str, op: str, line: int
) -> Allocation:
    stack = (SourceLine(file=MODELING, line=line, function="forward"),)
    site = Site(module=module, op=op, phase="forward", stack=stack)
    return Allocation(bytes=gib(size), shape=shape, dtype=dtype, category="activations", site=site)


def profile_report() -> ProfileReport:
    """Two forwards of a small model with its logits."""
    curve = []
    for step in range(2):
        for i in range(40):
            at = step * 50 + i
            curve.append((at, gib(1.2 + 0.05 * (i % 8) + 0.02 * i), gib(2.4 if step == 0 else 5)))
        curve.append((step * 50 + 40, gib(4.5), gib(5)))
        curve.append((step * 50 + 49, gib(1.2), gib(5)))
    return ProfileReport(
        name="Qwen3-0.6B",
        engine="meta",
        settings={"mode": "forward", "batch": 1, "seq": 4_096, "dtype": "bfloat16", "attn": "sdpa"},
        resident_bytes=gib(1.11),
        peak_allocated_bytes=gib(4.5),
        peak_reserved_bytes=gib(5),
        by_category_bytes={
            "weights": gib(1.11),
            "inputs": 32_768,
            "activations": gib(3.37),
            "workspace": gib(0.02),
        },
        top_allocations=(
            _allocation(1.16, (4_096, 151_936), "bfloat16", "lm_head", "aten.mm.default", 480),
            _allocation(0.29, (151_936, 1_024), "bfloat16", "model.embed_tokens", "load", 12),
            _allocation(
                0.03, (1, 4_096, 3_072), "bfloat16", "model.layers.27.mlp.act_fn", "aten.silu.default", 82
            ),
        ),
        peak_at=PeakAt(module="lm_head", op="aten.mm.default", phase="forward", source=f"{MODELING}:480"),
        curve=tuple(curve),
        phases=(("load", 0, 4), ("forward", 4, 50), ("forward", 50, 100)),
        findings=(DF001,),
        not_examined=(
            NotExamined(code="DF301", reason="no GPU to fit on"),
            NotExamined(code="DF302", reason="no GPU to fit on"),
        ),
        versions=VERSIONS,
        seconds=2.31,
    )
