"""Do the same work the naive way, as pipelines that run out of memory do.

The target goes through its causal LM, which computes logits for every position that no one reads;
features are concatenated from captured outputs. The loss projects the last hidden state of all T positions,
rolls by one and indexes; draft logits of all rows live through autograd, in float32. For benchmarks and
forecasts only.

Shape suffixes: T tokens, F = K * H features, H hidden size, V vocabulary, A anchors, B slots, R = A * B rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.profiler import record_function

from dflash_train.models.anchors import get_base_indices_for_anchored_blocks
from dflash_train.models.drafter import Drafter
from dflash_train.models.tables import FrozenTables
from dflash_train.models.target import FINAL_NORM_NAMES, find_layers
from dflash_train.optim import PlainOptimizer
from dflash_train.steps import DraftBatch, FeatureSlot


@torch.no_grad()
def baseline_target_features(
    causal_lm: Any, input_ids_1T: Tensor, layer_ids: Sequence[int]
) -> tuple[Tensor, Tensor]:
    """Return features [1, T, K * H] and the last hidden state before the final norm [1, T, H]."""
    body = causal_lm.base_model
    layers = find_layers(body)
    norm = next(getattr(body, name) for name in FINAL_NORM_NAMES if hasattr(body, name))
    captured: dict[int | str, Tensor] = {}

    def capture(key: int) -> Any:
        def hook(module: nn.Module, args: Any, output: Any) -> None:
            captured[key] = output[0] if isinstance(output, tuple) else output

        return hook

    def capture_last(module: nn.Module, args: Any) -> None:
        captured["last"] = args[0]

    handles = [layers[i].register_forward_hook(capture(i)) for i in layer_ids]
    handles.append(norm.register_forward_pre_hook(capture_last))
    try:
        causal_lm(input_ids=input_ids_1T, output_hidden_states=False, use_cache=False)
    finally:
        for handle in handles:
            handle.remove()
    return torch.cat([captured[i] for i in layer_ids], -1), captured["last"]


def baseline_verifier_targets(
    last_hidden_1TH: Tensor, final_norm: nn.Module, head_VH: Tensor, index_R: Tensor
) -> Tensor:
    """Project every position, roll by one, then keep the rows that are read: [1, R, V]."""
    verifier_logits_1TV = F.linear(final_norm(last_hidden_1TH), head_VH)
    verifier_logits_1TV = torch.roll(verifier_logits_1TV, 1, dims=1)
    return verifier_logits_1TV[:, index_R]


def baseline_draft_loss(
    draft_hidden_1RH: Tensor,
    last_hidden_1TH: Tensor,
    final_norm: nn.Module,
    head_VH: Tensor,
    anchors_A: Tensor,
    block_size: int,
    weights_R: Tensor | None = None,
) -> Tensor:
    """Return the KL divergence from the rolled verifier logits to the draft logits of all rows.

    Without weights it is the mean over rows, with them the weighted mean.
    """
    index_R = get_base_indices_for_anchored_blocks(anchors_A, block_size, last_hidden_1TH.shape[1])
    targets_1RV = baseline_verifier_targets(last_hidden_1TH, final_norm, head_VH, index_R)
    logits_1RV = F.linear(draft_hidden_1RH, head_VH)
    log_p_1RV = F.log_softmax(_widen(logits_1RV), -1)
    log_q_1RV = F.log_softmax(_widen(targets_1RV), -1)
    kl_R = F.kl_div(log_p_1RV, log_q_1RV, log_target=True, reduction="none").sum(-1)[0]
    if weights_R is None:
        return kl_R.mean()
    return (kl_R * weights_R).sum() / weights_R.sum()


def _widen(logits: Tensor) -> Tensor:
    return logits if logits.dtype == torch.float64 else logits.float()


def baseline_draft_step(
    drafter: Drafter,
    tables: FrozenTables,
    batch: DraftBatch,
    slot: FeatureSlot,
    anchors_A: Tensor,
    optimizer: PlainOptimizer,
    *,
    lr: float,
) -> Tensor:
    """Run forward, full-sequence loss, backward and the optimizer on one packed row; return the loss."""
    if slot.last_hidden_TH is None or tables.final_norm is None:
        raise ValueError("the full-sequence loss needs the last hidden state and the final norm")
    with record_function("phase:forward"):
        hidden_1RH = drafter(
            tables.embed(batch.block_ids_R)[None],
            slot.features_TF[None],
            batch.positions_S[None],
            batch.masks,
        )
        loss = baseline_draft_loss(
            hidden_1RH,
            slot.last_hidden_TH[None],
            tables.final_norm,
            tables.head_VH,
            anchors_A,
            batch.block_size,
        )
    loss.backward()
    with record_function("phase:optimizer"):
        optimizer.step(lr)
    return loss.detach()
