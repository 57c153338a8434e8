import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from dflash_doctor.errors import DoctorError
from dflash_doctor.intake import hub
from dflash_doctor.intake.models import missing_dimensions, resolve_model
from dflash_doctor.intake.presets import model_names, model_preset

TEXT = {"model_type": "qwen3_5_text", "vocab_size": 100, "hidden_size": 64, "num_hidden_layers": 8}


def _write(folder: Path, config: Any) -> Path:
    path = folder / "config.json"
    path.write_text(json.dumps(config), encoding="utf-8")
    return path


@pytest.mark.parametrize("name", model_names())
def test_every_preset_has_its_dimensions_and_a_source(name: str) -> None:
    model = resolve_model(name, flag="--model")
    assert model.origin == "preset"
    assert missing_dimensions(model.config) is None
    assert model_preset(name)["source"]


@pytest.mark.parametrize("name", model_names())
def test_transformers_takes_every_preset(name: str) -> None:
    from transformers import AutoConfig

    config: dict[str, Any] = dict(resolve_model(name, flag="--model").config)
    built = AutoConfig.for_model(config.pop("model_type"), **config)
    for key, value in config.items():
        if key != "full_attention_interval":
            assert getattr(built, key) == value, key


def test_a_file_and_its_folder_are_the_same_model(tmp_path: Path) -> None:
    folder = tmp_path / "Own-8B"
    folder.mkdir()
    path = _write(folder, TEXT)
    model = resolve_model(str(folder), flag="--model")
    assert (model.name, model.config) == ("Own-8B", TEXT)
    assert resolve_model(str(path), flag="--model").config == TEXT


def test_a_multimodal_config_is_reduced_to_its_text_model(tmp_path: Path) -> None:
    outer = {
        "model_type": "qwen3_5",
        "architectures": ["Qwen3_5ForConditionalGeneration"],
        "vision_config": {"hidden_size": 1},
        "tie_word_embeddings": True,
        "text_config": TEXT | {"dtype": "bfloat16"},
    }
    model = resolve_model(str(_write(tmp_path, outer)), flag="--model")
    assert model.config == TEXT | {"tie_word_embeddings": True}


def test_a_quantised_checkpoint_is_said_to_be_counted_unquantised(tmp_path: Path) -> None:
    model = resolve_model(str(_write(tmp_path, TEXT | {"quantization_config": {"bits": 4}})), flag="--model")
    assert "quantization_config" not in model.config
    assert "quantization_config is not modelled" in model.origin


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({**TEXT, "vocab_size": None}, "has no vocab_size"),
        ({"model_type": "qwen3", "hidden_size": 1}, "has no vocab_size and no num_hidden_layers"),
        ({**TEXT, "hidden_size": -3}, "has no positive whole number for hidden_size"),
        ({**TEXT, "hidden_size": "many"}, "has no positive whole number for hidden_size"),
        ({"vocab_size": 3}, "has no model_type"),
        ([], "holds no JSON object"),
    ],
)
def test_a_config_without_its_dimensions_is_refused(tmp_path: Path, config: Any, message: str) -> None:
    with pytest.raises(DoctorError) as caught:
        resolve_model(str(_write(tmp_path, config)), flag="--model")
    assert caught.value.message.startswith("--model: ")
    assert message in caught.value.message
    assert caught.value.exit_code == 2


def test_a_bare_model_type_is_its_own_defaults(tmp_path: Path) -> None:
    model = resolve_model(str(_write(tmp_path, {"model_type": "gpt2"})), flag="--config")
    assert model.config == {"model_type": "gpt2"}
    assert missing_dimensions(model.config) == "has no vocab_size and no hidden_size and no num_hidden_layers"


def test_broken_json_is_told_with_its_line(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text('{\n"a": \n}', encoding="utf-8")
    with pytest.raises(DoctorError, match=r"config\.json:3: not valid JSON"):
        resolve_model(str(path), flag="--model")


@pytest.mark.parametrize(
    ("ref", "message"),
    [
        ("qwen3-8", "--model: there is no model preset 'qwen3-8'; did you mean 'qwen3-8b'?"),
        ("./nowhere", "--model: there is no config.json at ./nowhere"),
        ("nowhere/config.json", "--model: there is no config.json at nowhere/config.json"),
    ],
)
def test_a_model_that_is_nowhere_is_refused(ref: str, message: str) -> None:
    with pytest.raises(DoctorError) as caught:
        resolve_model(ref, flag="--model")
    assert caught.value.message == message
    assert "qwen3.6-27b" in str(caught.value.hint)


def test_an_unknown_id_without_network_is_refused_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hub, "_reachable", lambda endpoint: False)
    start = time.monotonic()
    with pytest.raises(DoctorError) as caught:
        resolve_model("nobody/nothing-at-all", flag="--model")
    assert time.monotonic() - start < 5
    assert caught.value.message == (
        "--model: nobody/nothing-at-all is no preset, file or cached model, and the hub cannot be reached"
    )
    assert "pass --model a config.json" in str(caught.value.hint)


def test_a_host_that_does_not_answer_is_not_reachable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hub, "getproxies", dict)
    assert not hub._reachable("http://127.0.0.1:9")


def test_local_models_need_no_transformers(tmp_path: Path) -> None:
    path = _write(tmp_path, TEXT)
    code = (
        "import sys; from dflash_doctor.intake.models import resolve_model as r; "
        f"r('qwen3-8b', flag=''); r({str(path)!r}, flag=''); "
        "sys.exit(any(m in sys.modules for m in ('torch', 'transformers', 'huggingface_hub')))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
