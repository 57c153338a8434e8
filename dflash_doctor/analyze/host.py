"""Estimate what the machine around the GPUs must have."""

from collections.abc import Mapping

from dflash_doctor.records.plan import RunPlan
from dflash_doctor.records.report import HostNeeds
from dflash_doctor.records.trace import AllocationTrace

PROCESS_BYTES = 3 * 2**30
"""Assumed for one worker: Python, torch, CUDA libraries and the largest shard of weights on its way."""
KEPT_CHECKPOINTS = 2
DTYPE_BYTES = {"float32": 4, "float16": 2, "bfloat16": 2}


def host_needs(plan: RunPlan, traces: Mapping[str, AllocationTrace]) -> HostNeeds:
    """Add up a worker's footprint and row buffers per process, and two checkpoints of the drafter.

    A checkpoint holds weights, master weights and optimizer state, as they lie on the drafter's GPU.
    """
    processes = plan.num_targets + plan.num_drafters
    rows = plan.token_budget * 8 * 4 * processes
    state = 0
    if "drafter" in traces:
        kept = {"weights", "master_weights", "optimizer_state"}
        state = sum(s.bytes for s in traces["drafter"].storages if s.category in kept and s.died_at is None)
    return HostNeeds(
        memory_bytes=processes * PROCESS_BYTES + rows + state,
        checkpoint_disk_bytes=KEPT_CHECKPOINTS * state,
        basis=f"assumed: 3 GiB a process and one checkpoint being written; {KEPT_CHECKPOINTS} kept on disk",
    )
