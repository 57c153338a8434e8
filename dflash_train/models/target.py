"""Run the frozen target's body and capture what the drafter learns from.

    input ids [n, L] --> layer --> layer --> ... --> layer --> (final norm and lm_head are not run)
                           |                    |        |
                     columns [0, H)   ...  [(K-1)H, KH)  last hidden state, only if asked for

Each hook copies its layer's output into the preallocated slot at once, so no output outlives the next layer.
A packed row goes through in sub-rows cut at document boundaries: documents stay apart without any mask.

Shape suffixes: n documents of equal length, L their length, T tokens of the packed row, H hidden size,
K captured layers, F = K * H.
"""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle
from transformers import AutoConfig, AutoModel

from dflash_train.models.causal_attention import CAUSAL_ATTENTION, check_layer_types

FINAL_NORM_NAMES = ("norm", "ln_f", "final_layernorm", "final_layer_norm")


@dataclass(frozen=True, slots=True)
class SubRow:
    """Name consecutive documents of one length that run as one batch."""

    start: int
    num_documents: int
    length: int

    @property
    def num_tokens(self) -> int:
        """Count the tokens of the sub-row."""
        return self.num_documents * self.length


def target_layer_ids(num_layers: int, num_features: int) -> tuple[int, ...]:
    """Spread num_features captured layers from the second to the third from last.

    Layer id i means the output of decoder layer i (`hidden_states[i + 1]` in transformers). A single feature
    is taken from the middle. Raises ValueError where the layers do not suffice for distinct ids.
    """
    if num_features < 1:
        raise ValueError(f"at least one feature layer is needed, got {num_features}")
    if num_features == 1:
        if num_layers < 1:
            raise ValueError(f"a target has at least one layer, got {num_layers}")
        return (num_layers // 2,)
    span = num_layers - 4
    ids = tuple(round(1 + i * span / (num_features - 1)) for i in range(num_features))
    if span < 1 or len(set(ids)) != num_features:
        raise ValueError(f"{num_layers} layers are too few for {num_features} distinct feature layers")
    return ids


def check_layer_ids(layer_ids: Sequence[int], num_layers: int) -> tuple[int, ...]:
    """Return layer_ids as a tuple; ValueError where they repeat, fall or leave [0, num_layers)."""
    ids = tuple(layer_ids)
    if not ids:
        raise ValueError("at least one feature layer is needed")
    outside = [i for i in ids if not 0 <= i < num_layers]
    if outside:
        raise ValueError(f"feature layers {outside} lie outside the target's {num_layers} layers")
    if any(later <= earlier for earlier, later in itertools.pairwise(ids)):
        raise ValueError(f"feature layers must rise, got {list(ids)}")
    return ids


def split_sub_rows(document_lengths: Sequence[int], target_rows: int) -> list[SubRow]:
    """Cut a packed row into sub-rows of at most target_rows tokens; documents are never cut.

    A sub-row is one document, or consecutive documents of equal length that run as a batch; a longer document
    goes whole. target_rows = 0 runs the whole row in one call, as one document.
    """
    if target_rows < 0:
        raise ValueError(f"target_rows must not be negative, got {target_rows}")
    if not document_lengths or min(document_lengths) < 1:
        raise ValueError("document lengths must be positive, and there must be at least one")
    if target_rows == 0:
        return [SubRow(0, 1, sum(document_lengths))]
    sub_rows: list[SubRow] = []
    start = 0
    for length in document_lengths:
        last = sub_rows[-1] if sub_rows else None
        if last is not None and last.length == length and last.num_tokens + length <= target_rows:
            sub_rows[-1] = SubRow(last.start, last.num_documents + 1, length)
        else:
            sub_rows.append(SubRow(start, 1, length))
        start += length
    return sub_rows


class Target(nn.Module):
    """Hold a frozen decoder body and capture features from it.

    The body is taken over: it is frozen, and its final norm is taken out, since no one reads its output.
    `final_norm` keeps that for teacher logits (None where the architecture names it otherwise).
    """

    def __init__(self, body: nn.Module, layer_ids: Sequence[int], *, with_last_hidden: bool = False) -> None:
        super().__init__()
        self.layer_ids = check_layer_ids(layer_ids, len(find_layers(body)))
        self.with_last_hidden = with_last_hidden
        self.hidden_size = int(cast(Any, body).config.get_text_config().hidden_size)
        self.final_norm = take_final_norm(body)
        self.body = body
        # With a padding token some decoders (GPT-2) read the ids back in every call, to warn about padding.
        cast(Any, body).config.pad_token_id = None
        self.requires_grad_(False)
        self.eval()

    @property
    def feature_size(self) -> int:
        """Count the columns of a slot, K * H."""
        return len(self.layer_ids) * self.hidden_size

    def train(self, mode: bool = True) -> Target:
        """Stay in evaluation mode whatever is asked for."""
        return super().train(False)

    @torch.no_grad()
    def write_features(
        self, input_ids_nL: Tensor, out: Tensor, last_hidden_out: Tensor | None = None
    ) -> None:
        """Run documents of equal length and write their features into a slot's rows.

        out is [n * L, K * H], a view of the slot; last_hidden_out is [n * L, H] and takes the hidden state
        before the final norm. Raises ValueError for other shapes, or for a last hidden state from a target
        that was built without it.
        """
        num_tokens = input_ids_nL.numel()
        if tuple(out.shape) != (num_tokens, self.feature_size):
            raise ValueError(f"a slot of {[num_tokens, self.feature_size]} is needed, got {list(out.shape)}")
        layers, handles = find_layers(self.body), []
        try:
            for k, layer_id in enumerate(self.layer_ids):
                columns = out[:, k * self.hidden_size : (k + 1) * self.hidden_size]
                handles.append(_copy_output(layers[layer_id], columns))
            if last_hidden_out is not None:
                if not self.with_last_hidden:
                    raise ValueError("this target was built without its last hidden state")
                handles.append(_copy_output(layers[-1], last_hidden_out))
            self.body(input_ids=input_ids_nL, use_cache=False)
        finally:
            for handle in handles:
                handle.remove()


def build_target(
    config: Any,
    layer_ids: Sequence[int],
    *,
    dtype: torch.dtype,
    device: torch.device | str,
    attention: str = "sdpa",
    with_last_hidden: bool = False,
    stop_after_last_feature: bool = False,
) -> Target:
    """Build a target with random weights from a transformers config, at once in its dtype and on its device.

    attention "sdpa" is causal attention without any mask; other names are transformers' own.
    stop_after_last_feature leaves out the layers behind the last captured one, which nothing reads unless the
    last hidden state is asked for (ValueError for both).
    """
    config = _prepare_config(config, layer_ids, with_last_hidden, stop_after_last_feature)
    with torch.device(device):
        body = AutoModel.from_config(
            config, dtype=dtype, attn_implementation=_attention_name(config, attention)
        )
    return Target(body, layer_ids, with_last_hidden=with_last_hidden)


def load_target(
    name_or_path: str,
    layer_ids: Sequence[int],
    *,
    dtype: torch.dtype,
    device: torch.device | str,
    attention: str = "sdpa",
    with_last_hidden: bool = False,
    stop_after_last_feature: bool = False,
    local_files_only: bool = False,
) -> Target:
    """Load the body of a pretrained causal LM; arguments as in `build_target`.

    Raises ValueError where the model is not found, or where its files lack weights of the body.
    """
    try:
        config = AutoConfig.from_pretrained(name_or_path, local_files_only=local_files_only)
    except (OSError, ValueError) as error:
        raise ValueError(
            f"model {name_or_path!r} is neither a folder with a config.json nor found on the hub: {error}"
        ) from error
    config = _prepare_config(config, layer_ids, with_last_hidden, stop_after_last_feature)
    body, loading = AutoModel.from_pretrained(
        name_or_path,
        config=config,
        dtype=dtype,
        attn_implementation=_attention_name(config, attention),
        local_files_only=local_files_only,
        output_loading_info=True,
    )
    if missing := sorted(loading["missing_keys"]):
        raise ValueError(f"{name_or_path!r} lacks {len(missing)} weights of the body, first {missing[0]}")
    return Target(body, layer_ids, with_last_hidden=with_last_hidden).to(device)


def find_layers(body: nn.Module) -> nn.ModuleList:
    """Return the decoder layers of a body: its one list of `num_hidden_layers` modules."""
    num_layers = cast(Any, body).config.get_text_config().num_hidden_layers
    found = [
        child for child in body.children() if isinstance(child, nn.ModuleList) and len(child) == num_layers
    ]
    if len(found) != 1:
        raise ValueError(f"{type(body).__name__} has {len(found)} lists of {num_layers} layers, not one")
    return found[0]


def take_final_norm(body: nn.Module) -> nn.Module | None:
    """Remove and return the norm behind the last layer; None under an unknown name (it then runs in vain)."""
    for name in FINAL_NORM_NAMES:
        norm = getattr(body, name, None)
        if isinstance(norm, nn.Module):
            setattr(body, name, nn.Identity())
            return norm
    return None


def _prepare_config(
    config: Any, layer_ids: Sequence[int], with_last_hidden: bool, stop_after_last_feature: bool
) -> Any:
    config = copy.deepcopy(config.get_text_config())
    layer_ids = check_layer_ids(layer_ids, config.num_hidden_layers)
    if not stop_after_last_feature:
        return config
    if with_last_hidden:
        raise ValueError("the last hidden state needs all layers: leave stop_after_last_feature off")
    config.num_hidden_layers = layer_ids[-1] + 1
    if getattr(config, "layer_types", None) is not None:
        config.layer_types = config.layer_types[: config.num_hidden_layers]
    return config


def _attention_name(config: Any, attention: str) -> str:
    if attention != "sdpa":
        return attention
    check_layer_types(config)
    return CAUSAL_ATTENTION


def _copy_output(layer: nn.Module, out: Tensor) -> RemovableHandle:
    def copy_output(module: nn.Module, args: tuple[Any, ...], output: Any) -> None:
        hidden_nLH = output[0] if isinstance(output, tuple) else output
        out.view(*hidden_nLH.shape[:2], -1).copy_(hidden_nLH)

    hook: Callable[..., None] = copy_output
    return layer.register_forward_hook(hook)
