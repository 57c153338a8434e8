"""Hold `trace_profile` to true peaks, and to clear errors."""

import functools
import json
from pathlib import Path
from statistics import median
from typing import Any

import pytest
import torch
import torch.nn.modules.module as modules
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

from dflash_doctor.analyze.replay import replay
from dflash_doctor.engines.profile import trace_profile
from dflash_doctor.errors import DoctorError
from dflash_doctor.records.plan import ModelSpec, ProfileRequest
from dflash_doctor.records.report import Replay

TRUTH = Path(__file__).parents[2] / "truth"
ROWS: dict[str, Any] = json.loads((TRUTH / "peaks.json").read_text())
MORE_ROWS: dict[str, Any] = json.loads((TRUTH / "more_peaks.json").read_text())


def request_of(name: str, row: dict[str, Any]) -> ProfileRequest:
    return ProfileRequest(
        model=ModelSpec(name=name, config=row["config"], origin="truth"),
        mode=row["mode"],
        batch=row["batch"],
        seq=row["seq"],
        dtype=row["dtype"],
        attention=row.get("attn", "sdpa"),
        optimizer=row.get("optimizer", "adamw").replace("_", "-"),
        clip=1.0 if row.get("clip") else None,
        gradient_checkpointing=row.get("gradient_checkpointing", False),
        linear_attention="fused" if row.get("fla") else "fallback",
    )


@functools.cache
def forecast(name: str) -> tuple[int, Replay]:
    """Give the resident bytes and the replay of a row, traced once."""
    row = ROWS.get(name) or MORE_ROWS[name]
    trace = trace_profile(request_of(name, row))
    return replay(trace, until="load").allocated_bytes, replay(trace)


def share_of_error(forecast_bytes: int, true_bytes: int) -> float:
    return abs(forecast_bytes - true_bytes) / true_bytes


@pytest.mark.parametrize("name", [*ROWS, *MORE_ROWS])
def test_peaks_of_whole_models_are_true(name: str) -> None:
    truth = (ROWS.get(name) or MORE_ROWS[name])["truth"]
    resident, played = forecast(name)
    assert resident == truth["resident"]
    assert share_of_error(played.peak_allocated_bytes, truth["peak_allocated"]) <= 0.005
    assert share_of_error(played.peak_reserved_bytes, truth["peak_reserved"]) <= 0.02


@pytest.mark.parametrize("rows", [ROWS, MORE_ROWS], ids=["rows", "more-rows"])
def test_half_of_the_peaks_are_much_closer(rows: dict[str, Any]) -> None:
    allocated, reserved = [], []
    for name, row in rows.items():
        _, played = forecast(name)
        allocated.append(share_of_error(played.peak_allocated_bytes, row["truth"]["peak_allocated"]))
        reserved.append(share_of_error(played.peak_reserved_bytes, row["truth"]["peak_reserved"]))
    assert median(allocated) <= 0.001
    assert median(reserved) <= 0.005


def tiny(**changes: Any) -> dict[str, Any]:
    return {
        "model_type": "llama", "vocab_size": 1000, "hidden_size": 64, "intermediate_size": 128,
        "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, **changes,
    }  # fmt: skip


def request_tiny(config: dict[str, Any], **changes: Any) -> ProfileRequest:
    return ProfileRequest(
        model=ModelSpec(name="tiny", config=config, origin="test"), **{"seq": 32, "mode": "train", **changes}
    )


def test_two_traces_of_one_request_are_equal() -> None:
    first, second = (trace_profile(request_tiny(tiny())) for _ in range(2))
    assert first.events == second.events
    assert first.ops == second.ops
    assert first.storages == second.storages
    assert first.phases == second.phases


def test_phases_are_loading_and_then_three_steps() -> None:
    trace = trace_profile(request_tiny(tiny()))
    assert [phase.name for phase in trace.phases] == ["load", *["forward", "backward", "optimizer"] * 3]
    assert (trace.phases[0].start, trace.phases[-1].stop) == (0, len(trace.events))


def test_ids_are_inputs_and_not_resident() -> None:
    trace = trace_profile(request_tiny(tiny(), batch=2, mode="forward"))
    (ids,) = [storage for storage in trace.storages if storage.category == "inputs"]
    assert (ids.bytes, ids.shape, ids.dtype) == (2 * 32 * 8, (2, 32), "int64")
    assert trace.phases[0].stop <= trace.events.index(ids.id + 1)


def test_categories_of_a_training_step_count_each_parameter_once() -> None:
    trace = trace_profile(request_tiny(tiny(tie_word_embeddings=True), dtype="float32"))
    numels = {"weights": 0, "gradients": 0, "optimizer_state": 0}
    for storage in trace.storages:
        if storage.category in numels:
            numels[storage.category] += storage.bytes // 4
    attention, mlp, norms = 64 * 64 * 2 + 64 * 32 * 2, 3 * 64 * 128, 2 * 64
    num_parameters = 1000 * 64 + 2 * (attention + mlp + norms) + 64
    assert numels["weights"] == num_parameters
    assert numels["gradients"] == 3 * num_parameters
    assert numels["optimizer_state"] == 2 * num_parameters


def test_an_unknown_model_type_is_a_clear_error() -> None:
    with pytest.raises(DoctorError, match="transformers cannot build the model 'nonesuch'") as caught:
        trace_profile(request_tiny({"model_type": "nonesuch"}))
    assert (caught.value.exit_code, caught.value.hint) == (2, "check the config given by --config or --model")


def test_a_step_that_fails_is_a_clear_error_with_exit_code_3() -> None:
    config = tiny(num_attention_heads=4, num_key_value_heads=3, head_dim=16)
    with pytest.raises(DoctorError, match="the step of tiny failed: ") as caught:
        trace_profile(request_tiny(config, attention="eager"))
    assert caught.value.exit_code == 3
    assert caught.value.hint == "check --batch, --seq and --attn against the config"


def test_an_unknown_optimizer_names_the_known_ones() -> None:
    with pytest.raises(DoctorError, match="unknown optimizer 'adam'") as caught:
        trace_profile(request_tiny(tiny(), optimizer="adam"))
    assert caught.value.hint == "--optimizer takes adamw, adamw-fused, sgd"


def test_a_step_that_fails_leaves_torch_as_it_was() -> None:
    attention, hooks = torch.nn.functional.scaled_dot_product_attention, dict(modules._global_forward_hooks)
    with pytest.raises(DoctorError):
        trace_profile(request_tiny(tiny(num_key_value_heads=3, head_dim=16), attention="eager"))
    assert torch.nn.functional.scaled_dot_product_attention is attention
    assert dict(modules._global_forward_hooks) == hooks
    assert not _get_current_dispatch_mode_stack()
