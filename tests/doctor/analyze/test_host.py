from dflash_doctor.analyze.host import host_needs
from tests.doctor.report_builder import GIB, plan
from tests.doctor.trace_builder import TraceBuilder

MIB = 2**20


def drafter() -> TraceBuilder:
    trace = TraceBuilder(role="drafter")
    trace.tensor(10 * MIB // 2, category="weights")
    trace.tensor(20 * MIB // 4, dtype="float32", category="master_weights")
    trace.tensor(40 * MIB // 4, dtype="float32", category="optimizer_state")
    trace.tensor(80 * MIB // 2, category="tables")
    trace.tensor(160 * MIB // 2, category="gradients")
    trace.free(trace.tensor(320 * MIB // 4, dtype="float32", category="master_weights"))
    return trace


def test_a_host_holds_its_processes_their_rows_and_a_checkpoint_on_its_way() -> None:
    needs = host_needs(plan(token_budget=65_536), {"drafter": drafter().build()})
    state = 70 * MIB
    rows = 8 * 65_536 * 8 * 4
    assert needs.memory_bytes == 8 * 3 * GIB + rows + state
    assert needs.checkpoint_disk_bytes == 2 * state
    assert needs.basis.startswith("assumed: 3 GiB a process")


def test_without_a_drafter_there_is_no_checkpoint() -> None:
    needs = host_needs(plan(num_targets=2, num_drafters=0, token_budget=1_024), {})
    assert (needs.memory_bytes, needs.checkpoint_disk_bytes) == (6 * GIB + 2 * 1_024 * 32, 0)
