"""Rotate queries and keys by their positions, over the full head dimension.

Frequencies are computed from the configuration in every forward (a handful of tiny kernels), so that no
buffer can be stale after `to_empty` or a change of dtype.

Shape suffixes: N batch, L positions, G heads, D head dimension.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

STATIC_ROPE_TYPES = ("default", "linear", "yarn", "llama3")


def check_rope(config: Any) -> None:
    """Refuse rotary embeddings that differ from the served drafter's: ValueError.

    Dynamic types depend on the sequence length; partial and multimodal rotations are not what vLLM, SGLang
    and z-lab's package apply to a DFlash drafter.
    """
    parameters = config.rope_parameters
    rope_type = parameters.get("rope_type", "default")
    if rope_type not in STATIC_ROPE_TYPES:
        raise ValueError(f"rope_type {rope_type!r} is not one of {', '.join(STATIC_ROPE_TYPES)}")
    if parameters.get("partial_rotary_factor", 1.0) != 1.0:
        raise ValueError("a DFlash drafter rotates the full head dimension: remove partial_rotary_factor")
    if parameters.get("mrope_section") is not None:
        raise ValueError("a DFlash drafter has one-dimensional positions: remove mrope_section")


def rotary_tables(config: Any, positions_NL: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Return cosines and sines, each [N, L, D], computed in float32 and cast to dtype."""
    device = positions_NL.device
    parameters = config.rope_parameters
    rope_type = parameters.get("rope_type", "default")
    if rope_type == "default":
        exponent_d = torch.arange(0, config.head_dim, 2, dtype=torch.float32, device=device) / config.head_dim
        inverse_d, scale = 1.0 / (parameters["rope_theta"] ** exponent_d), 1.0
    else:
        inverse_d, scale = ROPE_INIT_FUNCTIONS[rope_type](config, device)
    angles_NLd = positions_NL[..., None].to(torch.float32) * inverse_d
    cos_NLd, sin_NLd = angles_NLd.cos() * scale, angles_NLd.sin() * scale
    return torch.cat((cos_NLd, cos_NLd), -1).to(dtype), torch.cat((sin_NLd, sin_NLd), -1).to(dtype)


def rotate(x_NGLD: Tensor, cos_NLD: Tensor, sin_NLD: Tensor) -> Tensor:
    """Rotate every head of x by its position's angles."""
    low, high = x_NGLD.chunk(2, dim=-1)
    turned_NGLD = torch.cat((-high, low), dim=-1)
    return x_NGLD * cos_NLD.unsqueeze(1) + turned_NGLD * sin_NLD.unsqueeze(1)
