"""Trace roles: the trainer's own steps against true peaks, and what is known of any step."""

import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from dflash_doctor.analyze.fit import unknown_value
from dflash_doctor.analyze.gpus import sum_by_category
from dflash_doctor.analyze.replay import alive_at, replay
from dflash_doctor.engines.roles import TRAINER_STEPS, load_step, step_reference, trace_role
from dflash_doctor.errors import DoctorError
from dflash_doctor.intake.plan_flags import PlanFlags, plan_from_flags
from dflash_doctor.records.plan import ModelSpec
from dflash_doctor.records.trace import AllocationTrace
from tests.doctor.report_builder import plan

STEPS: dict[str, Any] = json.loads((Path(__file__).parents[2] / "truth" / "steps.json").read_text())
HINT = "--draft-step takes module:function"
WIDTH, ROWS = 1_024, 512
WEIGHT = WIDTH * WIDTH * 2
TINY = ModelSpec(name="tiny", config={"model_type": "qwen3", "vocab_size": 1_000}, origin="test")

Step = Callable[[], Any]


@pytest.fixture(autouse=True)
def _same_path() -> Iterator[None]:
    before = list(sys.path)
    yield
    sys.path[:] = before


# The trainer's own steps


@pytest.mark.parametrize("name", STEPS)
def test_peaks_of_the_trainers_steps_are_true(name: str) -> None:
    row, flags = STEPS[name], STEPS[name]["flags"]
    trace = trace_role(plan_from_flags(PlanFlags(gpus="8", gpu="rtx-pro-6000", **flags)).plan, row["role"])
    played, truth = replay(trace), row["truth"]
    assert abs(played.peak_allocated_bytes / truth["peak_allocated"] - 1) <= 0.001
    assert abs(played.peak_reserved_bytes / truth["peak_reserved"] - 1) <= 0.005
    assert trace.untraced_ops == ()
    assert unknown_value(trace) is None


def test_the_trainers_steps_are_reached_by_name() -> None:
    own = plan(target_step="mine:target")
    assert step_reference(own, "target") == "mine:target"
    assert step_reference(own, "drafter") == TRAINER_STEPS["drafter"] == "dflash_train.roles:drafter_role"
    assert load_step(TRAINER_STEPS["target"], "--target-step").__module__ == "dflash_train.roles"


# A step of one's own


def traced(monkeypatch: pytest.MonkeyPatch, build: Callable[[Any, torch.device], Any]) -> AllocationTrace:
    """Trace a drafter whose step `build` gives."""
    monkeypatch.setattr("tests.doctor.engines.test_roles.build", build, raising=False)
    return trace_role(plan(draft_step="tests.doctor.engines.test_roles:build", model=TINY), "drafter")


def linear(device: torch.device) -> torch.nn.Linear:
    return torch.nn.Linear(WIDTH, WIDTH, bias=False, device=device, dtype=torch.bfloat16)


def forward(device: torch.device) -> tuple[torch.nn.Linear, Step]:
    """Build a layer and a step that leaves nothing behind."""
    layer = linear(device)
    rows = torch.ones(ROWS, WIDTH, device=device, dtype=torch.bfloat16)
    return layer, lambda: layer(rows)


def categories(trace: AllocationTrace, event: int | None = None) -> dict[str, int]:
    return sum_by_category(trace, alive_at(trace, len(trace.events) - 1 if event is None else event))


def test_a_step_that_leaves_nothing_behind_is_run_once(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []

    def build(plan: Any, device: torch.device) -> tuple[torch.nn.Module, Step]:
        layer, run = forward(device)

        def step() -> None:
            calls.append("step")
            run()

        return layer, step

    trace = traced(monkeypatch, build)
    assert calls == ["step"]
    assert trace.steady is not None
    start, stop = trace.steady
    assert (stop, trace.events[start]) == (len(trace.events), start + 1)
    assert [phase.name for phase in trace.phases] == ["load", "forward"]
    assert (trace.role, trace.origin, trace.vocab_size) == ("drafter", "meta", 1_000)
    assert trace.versions["torch"].startswith(torch.__version__.partition("+")[0])


def test_a_step_that_holds_on_to_something_is_run_three_times(monkeypatch: pytest.MonkeyPatch) -> None:
    held = []

    def build(plan: Any, device: torch.device) -> tuple[torch.nn.Module, Step]:
        layer, step = forward(device)
        return layer, lambda: held.append(step())

    trace = traced(monkeypatch, build)
    assert (len(held), trace.steady) == (3, None)
    assert categories(trace)["activations"] == 4 * ROWS * WIDTH * 2


def test_a_step_that_frees_what_was_loaded_is_run_three_times(monkeypatch: pytest.MonkeyPatch) -> None:
    def build(plan: Any, device: torch.device) -> tuple[torch.nn.Module, Step]:
        layer, step = forward(device)
        queue = [torch.ones(ROWS, device=device) for _ in range(3)]
        return layer, lambda: (queue.pop(), step())

    assert traced(monkeypatch, build).steady is None


def test_masters_gradients_and_states_are_known_by_the_optimizer(monkeypatch: pytest.MonkeyPatch) -> None:
    def build(plan: Any, device: torch.device) -> tuple[torch.nn.Module, Step]:
        layer, run = forward(device)
        master = torch.nn.Parameter(layer.weight.detach().float())
        optimizer = torch.optim.AdamW([master], fused=True)

        def step() -> None:
            run().sum().backward()
            assert layer.weight.grad is not None
            master.grad, layer.weight.grad = layer.weight.grad.float(), None
            optimizer.step()
            optimizer.zero_grad()

        return layer, step

    trace = traced(monkeypatch, build)
    sizes = {
        name: sum(s.bytes for s in trace.storages if s.category == name and s.bytes > 4)
        for name in ("weights", "master_weights", "gradients", "optimizer_state")
    }
    assert sizes == {
        "weights": WEIGHT,
        "master_weights": 2 * WEIGHT,
        "gradients": WEIGHT + 2 * WEIGHT,
        "optimizer_state": 4 * WEIGHT,
    }
    assert trace.steady is not None
    assert [phase.name for phase in trace.phases] == ["load", "forward", "backward", "forward"]


def test_a_step_says_what_it_holds(monkeypatch: pytest.MonkeyPatch) -> None:
    class Held:
        def __init__(self, device: torch.device) -> None:
            self.layer, self.run = forward(device)
            self.holds = {"features": [torch.ones(ROWS, WIDTH, device=device)]}

        def __call__(self) -> None:
            self.run()

    def build(plan: Any, device: torch.device) -> tuple[torch.nn.Module, Step]:
        held = Held(device)
        return held.layer, held

    assert categories(traced(monkeypatch, build))["features"] == ROWS * WIDTH * 4


def test_a_module_may_be_anything(monkeypatch: pytest.MonkeyPatch) -> None:
    trace = traced(monkeypatch, lambda plan, device: (None, forward(device)[1]))
    assert "weights" not in categories(trace)


def test_an_unknown_number_leaves_the_fit_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    def build(plan: Any, device: torch.device) -> tuple[torch.nn.Module, Step]:
        layer, step = forward(device)
        return layer, lambda: torch.ones(int((step() > 0).sum()) + 1, 8 * ROWS * WIDTH, device=device)

    trace = traced(monkeypatch, build)
    reason = unknown_value(trace)
    assert reason is not None
    assert "test_roles.py" in reason


# Mistakes


@pytest.mark.parametrize(
    ("reference", "message"),
    [
        ("nothing", "cannot load the step 'nothing': it has no colon"),
        ("nothing:", "cannot load the step 'nothing:': it has no colon"),
        (":step", "cannot load the step ':step': Empty module name"),
        (
            "no_such_module:step",
            "cannot load the step 'no_such_module:step': No module named 'no_such_module'",
        ),
        ("math:step", "cannot load the step 'math:step': module 'math' has no attribute 'step'"),
        ("math:pi", "'math:pi' is no function"),
    ],
)
def test_a_wrong_reference_names_its_flag(reference: str, message: str) -> None:
    with pytest.raises(DoctorError) as raised:
        load_step(reference, "--draft-step")
    assert (raised.value.message, raised.value.exit_code) == (message, 2)
    assert raised.value.hint is not None
    assert raised.value.hint.startswith(HINT)


@pytest.mark.parametrize(
    ("source", "what"),
    [
        ("import sys\nsys.exit(0)\n", "SystemExit at broken.py:2: 0"),
        ("\nraise RuntimeError('no data here')\n", "RuntimeError at broken.py:2: no data here"),
        ("import no_such_package\n", "No module named 'no_such_package'"),
    ],
)
def test_a_module_that_fails_on_import_is_the_users_mistake(
    source: str, what: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "broken.py").write_text(source)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(DoctorError) as raised:
        load_step("broken:step", "--draft-step")
    assert raised.value.message == f"cannot load the step 'broken:step': {what}"
    assert raised.value.exit_code == 2


@pytest.mark.parametrize(
    ("built", "kind"),
    [
        (len, "builtin_function_or_method"),
        ((None, 3), "a step of type int"),
        ((1, 2, 3), "3 things"),
        (None, "NoneType"),
    ],
)
def test_a_function_that_gives_no_pair_is_the_users_mistake(
    built: object, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(DoctorError) as raised:
        traced(monkeypatch, lambda plan, device: built)
    assert (
        raised.value.message == f"tests.doctor.engines.test_roles:build returned {kind}, not (module, step)"
    )
    assert raised.value.exit_code == 2


@pytest.mark.parametrize("error", [RuntimeError("shapes differ"), SystemExit("shapes differ")])
@pytest.mark.parametrize("in_step", [True, False])
def test_a_step_that_fails_could_not_be_determined(
    error: BaseException, in_step: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail() -> None:
        raise error

    def build(plan: Any, device: torch.device) -> tuple[None, Step]:
        if not in_step:
            fail()
        return None, fail

    with pytest.raises(DoctorError) as raised:
        traced(monkeypatch, build)
    line = fail.__code__.co_firstlineno + 1
    assert raised.value.message.startswith("the drafter step tests.doctor.engines.test_roles:build failed ")
    assert raised.value.message.endswith(f"test_roles.py:{line}: {type(error).__name__}: shapes differ")
    assert raised.value.exit_code == 3
    assert raised.value.hint is not None
    assert "--draft-step" in raised.value.hint
