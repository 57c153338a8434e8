"""Find a target model's configuration: a preset, a config.json, its folder, or an id of the hub."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dflash_doctor.errors import DoctorError
from dflash_doctor.intake.hub import fetch_config
from dflash_doctor.intake.presets import model_names, model_preset
from dflash_doctor.intake.settings import did_you_mean
from dflash_doctor.records.plan import ModelSpec

DIMENSIONS: dict[str, tuple[str, ...]] = {
    "vocab_size": ("vocab_size",),
    "hidden_size": ("hidden_size", "n_embd", "d_model"),
    "num_hidden_layers": ("num_hidden_layers", "n_layer", "n_layers", "num_layers"),
}
_NOT_DIMENSIONS = frozenset(
    {
        "_name_or_path",
        "architectures",
        "auto_map",
        "dtype",
        "torch_dtype",
        "transformers_version",
        "quantization_config",
        "return_dict",
    }
)


def dimension(config: Mapping[str, object], name: str) -> int | None:
    """Read one of DIMENSIONS from a configuration, under any of its names; None where it is absent."""
    for alias in DIMENSIONS[name]:
        value = config.get(alias)
        if isinstance(value, int) and not isinstance(value, bool):
            return value
    return None


def resolve_model(ref: str, *, flag: str, base: Path | None = None) -> ModelSpec:
    """Find a model by preset name, path of a config.json or its folder, or id on the hub.

    A relative path counts from `base`. Files and presets are read without transformers, and no
    code of a model is ever run. Raises DoctorError naming `flag`.
    """
    ref = ref.strip()
    if ref.lower() in model_names():
        name = ref.lower()
        return ModelSpec(name=name, config=model_preset(name)["config"], origin="preset")
    path = (base or Path()) / Path(ref).expanduser()
    if path.is_dir():
        path = path / "config.json"
    if path.is_file():
        name = path.stem if path.stem != "config" else path.resolve().parent.name
        return model_from_config(
            _read_json(path, flag), name=name or "model", origin=f"file {path}", flag=flag
        )
    if _looks_like_path(ref):
        raise DoctorError(
            f"{flag}: there is no config.json at {ref}",
            hint=f"pass a config.json, a folder that holds one, or a preset: {', '.join(model_names())}",
        )
    if ref.count("/") != 1:
        raise DoctorError(
            f"{flag}: there is no model preset {ref!r}{did_you_mean(ref, model_names())}",
            hint=f"pass a config.json, its folder, an id owner/name, or a preset: {', '.join(model_names())}",
        )
    return model_from_config(fetch_config(ref, flag=flag), name=ref, origin=f"hub {ref}", flag=flag)


def model_from_config(config: Mapping[str, Any], *, name: str, origin: str, flag: str) -> ModelSpec:
    """Reduce a configuration to its text model's, without what does not decide its shape.

    A configuration that names none of DIMENSIONS is the model type's own defaults. Raises
    DoctorError naming `flag` where only some are there or one is no positive count.
    """
    text: Mapping[str, Any] = config
    for nested in ("text_config", "llm_config", "language_config"):
        if isinstance(config.get(nested), Mapping):
            text = config[nested]
            break
    model_type = text.get("model_type") or config.get("model_type")
    if not isinstance(model_type, str) or not model_type:
        raise DoctorError(
            f"{flag}: the configuration of {name} has no model_type",
            hint='a config.json of transformers names its architecture, such as "model_type": "qwen3"',
        )
    reduced = {"model_type": model_type} | {k: v for k, v in text.items() if k not in _NOT_DIMENSIONS}
    if "tie_word_embeddings" in config and text is not config:
        reduced.setdefault("tie_word_embeddings", config["tie_word_embeddings"])
    reduced["model_type"] = model_type
    if any(key in text for key in DIMENSIONS):
        missing = missing_dimensions(reduced)
        if missing:
            raise DoctorError(f"{flag}: the configuration of {name} {missing}", hint=_DIMENSION_HINT)
    if "quantization_config" in config:
        origin += "; its quantization_config is not modelled, weights are counted in the plan's dtype"
    return ModelSpec(name=name, config=reduced, origin=origin)


_DIMENSION_HINT = (
    "a forecast needs vocab_size, hidden_size and num_hidden_layers, each a positive whole number"
)


def missing_dimensions(config: Mapping[str, object]) -> str | None:
    """Say which of DIMENSIONS a configuration lacks or has wrong; None where all are right."""
    absent = [
        name for name, aliases in DIMENSIONS.items() if all(config.get(alias) is None for alias in aliases)
    ]
    if absent:
        return f"has no {' and no '.join(absent)}"
    wrong = [name for name in DIMENSIONS if (dimension(config, name) or 0) < 1]
    if wrong:
        return f"has no positive whole number for {', '.join(wrong)}"
    return None


def _looks_like_path(ref: str) -> bool:
    return ref.startswith((".", "/", "~")) or ref.endswith(".json") or ref.count("/") > 1 or "\\" in ref


def _read_json(path: Path, flag: str) -> Mapping[str, Any]:
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except json.JSONDecodeError as error:
        raise DoctorError(f"{flag}: {path}:{error.lineno}: not valid JSON: {error.msg}") from None
    except (OSError, UnicodeDecodeError) as error:
        raise DoctorError(f"{flag}: {path} cannot be read: {error}") from None
    if not isinstance(config, dict):
        raise DoctorError(
            f"{flag}: {path} holds no JSON object", hint="it must be a config.json of transformers"
        )
    return config
