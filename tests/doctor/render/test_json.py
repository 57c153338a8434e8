"""Hold the keys and types of the JSON."""

import json
from dataclasses import replace

from dflash_doctor.render.json import preflight_json, profile_json, thin_curve
from tests.doctor.render.sample_reports import LOGITS, crash_report, fixed_report, profile_report

MODELING_LINE = "transformers/models/qwen3_5/modeling_qwen3_5.py:1716"


def test_preflight_has_every_key_with_bytes_as_integers() -> None:
    built = preflight_json(crash_report())
    assert json.loads(json.dumps(built)) == built
    assert {
        "schema_version", "verdict", "plan_fingerprint", "gpus", "findings", "largest_token_budget",
        "savings", "host", "versions", "seconds",
    } <= set(built)  # fmt: skip
    gpu = built["gpus"][0]
    assert {
        "index", "role", "peak_allocated_bytes", "peak_reserved_bytes", "outside_bytes", "capacity_bytes",
        "headroom_bytes", "by_category_bytes", "peak_at", "verdict",
    } <= set(gpu)  # fmt: skip
    sizes = [value for key, value in gpu.items() if key.endswith("_bytes")]
    assert all(isinstance(value, (int, dict)) for value in sizes)
    assert gpu["peak_at"] == {
        "module": "lm_head", "op": "aten.mm.default", "phase": "forward", "source": MODELING_LINE,
    }  # fmt: skip
    assert built["schema_version"] == 1
    assert built["before"] is None


def test_a_finding_has_exactly_the_agreed_keys() -> None:
    finding = preflight_json(crash_report())["findings"][0]
    assert finding == {
        "code": "DF001",
        "name": "unused-full-vocab-logits",
        "severity": "error",
        "confidence": "proved",
        "gpus": [0, 1, 2, 3, 4, 5, 6],
        "bytes": LOGITS,
        "module": "lm_head",
        "op": "aten.mm.default",
        "source": MODELING_LINE,
        "message": "lm_head output [1, 65536, 248320] is never read: 30.31 GiB",
        "fix": {
            "text": "call the body, `model.model(...)` or `model.base_model(...)`, which gives hidden states "
            "without logits; or pass `logits_to_keep=1`",
            "safety": "safe",
            "setting": 'target.forward = "body"',
        },
    }


def test_the_plan_before_the_fix_goes_along() -> None:
    built = preflight_json(fixed_report(), crash_report())
    assert built["before"] == preflight_json(crash_report())
    assert built["before"]["verdict"] == "wont-fit"
    assert [finding["code"] for finding in built["before"]["findings"]][:2] == ["DF001", "DF002"]
    assert built["before"]["halved_budget"]["token_budget"] == 32_768
    assert built["savings"]["never_made_bytes"] == 9 * LOGITS
    assert len(built["savings"]["peak_drop_bytes"]) == 8


def test_profile_has_every_key() -> None:
    built = profile_json(replace(profile_report(), settings={"note": ("a", 1), "path": object}))
    assert json.loads(json.dumps(built)) == built
    assert {
        "schema_version", "engine", "resident_bytes", "peak_allocated_bytes", "peak_reserved_bytes",
        "by_category_bytes", "top_allocations", "findings", "seconds",
    } <= set(built)  # fmt: skip
    assert set(built["top_allocations"][0]) >= {"bytes", "shape", "dtype", "module", "op", "source", "phase"}
    assert built["settings"]["note"] == ["a", 1]


def test_sources_of_packages_are_short_and_a_users_are_whole() -> None:
    built = preflight_json(crash_report())
    assert built["findings"][0]["source"] == MODELING_LINE
    assert built["findings"][1]["source"] == "/data/scripts/dflash_model.py:51"
    (source,) = profile_json(profile_report())["top_allocations"][0]["stack"]
    assert source == "transformers/models/qwen3_5/modeling_qwen3_5.py:480"


def test_a_long_curve_is_thinned_and_keeps_its_peak_and_end() -> None:
    curve = [(i, 1_000 if i == 5_001 else i % 7, 2_000) for i in range(10_000)]
    thin = thin_curve(curve, 100)
    assert len(thin) == 100
    assert [5_001, 1_000, 2_000] in thin
    assert thin[-1] == [9_999, 9_999 % 7, 2_000]
    assert thin_curve(curve[:5], 100) == [list(point) for point in curve[:5]]
