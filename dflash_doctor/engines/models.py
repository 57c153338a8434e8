"""Build a transformers model on meta from its configuration; no weights, no network."""

from collections.abc import Mapping
from typing import Any

import torch

from dflash_doctor.errors import DoctorError


def build_causal_lm(config: Mapping[str, object], *, dtype: torch.dtype, attention: str) -> torch.nn.Module:
    """Build a causal LM on the meta device in its final dtype, weights tied as its config says.

    Raises DoctorError where transformers does not know the model type or refuses the config.
    """
    from transformers import AutoModelForCausalLM

    hf_config = build_config(config)
    try:
        before = torch.get_default_dtype()
        torch.set_default_dtype(dtype)
        try:
            with torch.device("meta"):
                model = AutoModelForCausalLM.from_config(hf_config, attn_implementation=attention)
        finally:
            torch.set_default_dtype(before)
    except Exception as error:
        raise _refusal(hf_config.model_type, attention, error) from error
    model.tie_weights()
    return model  # type: ignore[no-any-return]


def build_config(config: Mapping[str, object]) -> Any:
    """Make transformers' configuration; raises DoctorError where it refuses the fields."""
    from transformers import AutoConfig

    fields: dict[str, Any] = dict(config)
    model_type = str(fields.pop("model_type", ""))
    try:
        return AutoConfig.for_model(model_type, **fields)
    except Exception as error:
        raise _refusal(model_type, "", error) from error


def _refusal(model_type: str, attention: str, error: Exception) -> DoctorError:
    """Say what transformers did not like; whatever it raises, the config or the attention is the cause."""
    if "attention implementation" in str(error):
        return DoctorError(
            f"{model_type} has no {attention!r} attention in transformers", hint="pass --attn eager"
        )
    text = " ".join(str(error).split())
    return DoctorError(
        f"transformers cannot build the model {model_type!r}: {text or type(error).__name__}",
        hint="check the config given by --config or --model",
    )
