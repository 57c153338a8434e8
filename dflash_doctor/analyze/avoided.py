"""Name the waste that a plan does not have, with what it would have cost."""

from dflash_doctor.records.plan import RunPlan
from dflash_doctor.units import format_bytes

DTYPE_BYTES = {"float32": 4}


def avoided_waste(plan: RunPlan) -> tuple[str, ...]:
    """Say what full-vocabulary logits would take, where the plan's own steps leave them out."""
    vocab = plan.model.config.get("vocab_size")
    if not isinstance(vocab, int):
        return ()
    size = format_bytes(plan.token_budget * vocab * DTYPE_BYTES.get(plan.dtype, 2))
    lines = []
    if plan.target_forward == "body" and plan.target_step is None and plan.num_targets:
        lines.append(f"full-vocabulary logits would take {size} a target: see --preset founding-crash")
    teacher = plan.loss.kind != "ce"
    if teacher and plan.loss.projection == "selected" and plan.draft_step is None and plan.num_drafters:
        lines.append(f"verifier logits of every row would take {size} on the drafter, twice while rolled")
    return tuple(lines)
