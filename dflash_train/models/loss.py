"""Compute the loss through a frozen lm_head without ever holding its logits.

The head takes no gradient, so the forward pass can finish each chunk of rows: logits, loss, and the gradient
with respect to the hidden states, which alone is kept. Two matrix products a row, no recomputation; a chunk
holds one float32 [C, V] buffer (two with a teacher) and one in the hidden states' dtype.

    ce          -log p(label)
    ce_teacher  -sum_v q(v) log p(v)             q: the teacher's distribution
    kl          sum_v q(v) (log q(v) - log p(v))

Shape suffixes: P predicting rows, C rows of a chunk, V vocabulary, H hidden size.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

LOSS_KINDS = ("ce", "ce_teacher", "kl")

CHUNK_BYTES = 256 * 2**20
"""Bytes of float32 logits that a chunk aims at."""

MAX_CHUNK_ROWS = 2048


@dataclass(frozen=True, slots=True, kw_only=True)
class LossResult:
    """Hold a loss and what it was made of, all on the device."""

    loss: Tensor
    """Weighted mean, a scalar; float32 or wider."""
    correct_P: Tensor
    """Whether the most likely token is the label (or the teacher's most likely one); bool."""


def default_chunk_rows(vocab_size: int) -> int:
    """Return a chunk's rows: a multiple of 128 near 256 MiB of float32 logits, at most 2,048."""
    return min(MAX_CHUNK_ROWS, max(128, CHUNK_BYTES // (4 * vocab_size) // 128 * 128))


def frozen_head_loss(
    hidden_PH: Tensor,
    head_VH: Tensor,
    weights_P: Tensor,
    *,
    kind: str = "ce",
    labels_P: Tensor | None = None,
    teacher_hidden_PH: Tensor | None = None,
    weight_sum: Tensor | None = None,
    chunk_rows: int | None = None,
) -> LossResult:
    """Return sum(weights * loss) / sum(weights), differentiable in hidden_PH only.

    kind "ce" needs labels; "kl" and "ce_teacher" need teacher_hidden_PH, the teacher's normalised hidden
    states that predict the same tokens through the same head. weight_sum replaces the sum of weights where
    rows are spread over several calls. Raises ValueError for an unknown kind or a missing input.
    """
    if kind not in LOSS_KINDS:
        raise ValueError(f"loss must be one of {', '.join(LOSS_KINDS)}, got {kind!r}")
    needed, name = (labels_P, "labels") if kind == "ce" else (teacher_hidden_PH, "teacher hidden states")
    if needed is None or needed.shape[0] != hidden_PH.shape[0]:
        raise ValueError(f"loss {kind!r} needs {name}, one for each of {hidden_PH.shape[0]} rows")
    if weight_sum is None:
        weight_sum = weights_P.sum()
    chunk_rows = default_chunk_rows(head_VH.shape[0]) if chunk_rows is None else chunk_rows
    apply: Any = _FrozenHeadLoss.apply
    loss, correct_P = cast(
        tuple[Tensor, Tensor],
        apply(hidden_PH, head_VH, weights_P, weight_sum, kind, needed, chunk_rows),
    )
    return LossResult(loss=loss, correct_P=correct_P)


class _FrozenHeadLoss(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        hidden_PH: Tensor,
        head_VH: Tensor,
        weights_P: Tensor,
        weight_sum: Tensor,
        kind: str,
        truth: Tensor,
        chunk_rows: int,
    ) -> tuple[Tensor, Tensor]:
        dtype = torch.float64 if hidden_PH.dtype == torch.float64 else torch.float32
        tiny = torch.finfo(dtype).tiny
        scale_P = weights_P.to(dtype) / weight_sum.to(dtype).clamp(min=tiny)
        loss = hidden_PH.new_zeros((), dtype=dtype)
        correct_P = torch.empty_like(weights_P, dtype=torch.bool)
        needs_grad = ctx.needs_input_grad[0]
        grad_PH = torch.empty_like(hidden_PH) if needs_grad else None
        for start in range(0, hidden_PH.shape[0], chunk_rows):
            rows = slice(start, start + chunk_rows)
            loss_C, correct_C, grad_CV = _chunk(kind, hidden_PH[rows], truth[rows], head_VH, dtype)
            loss += (loss_C * scale_P[rows]).sum()
            correct_P[rows] = correct_C
            if grad_PH is not None:
                grad_CV = grad_CV.mul_(scale_P[rows, None]).to(hidden_PH.dtype)
                torch.mm(grad_CV, head_VH, out=grad_PH[rows])
            del grad_CV  # before the next chunk is projected
        ctx.mark_non_differentiable(correct_P)
        if grad_PH is not None:
            ctx.save_for_backward(grad_PH)
        return loss, correct_P

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_loss: Tensor, grad_correct: Tensor) -> tuple[Tensor | None, ...]:
        (grad_PH,) = ctx.saved_tensors
        return grad_PH * grad_loss, None, None, None, None, None, None


def _chunk(
    kind: str, hidden_CH: Tensor, truth: Tensor, head_VH: Tensor, dtype: torch.dtype
) -> tuple[Tensor, Tensor, Tensor]:
    """Return loss, correctness and the gradient with respect to the logits of a chunk's rows."""
    if kind == "ce":
        return _token_chunk(_project(hidden_CH, head_VH, dtype), truth)
    teacher = _teacher_chunk(_project(truth, head_VH, dtype), with_entropy=kind == "kl")
    return _soft_chunk(_project(hidden_CH, head_VH, dtype), *teacher)


def _project(hidden_CH: Tensor, head_VH: Tensor, dtype: torch.dtype) -> Tensor:
    return torch.mm(hidden_CH, head_VH.t()).to(dtype)


def _token_chunk(logits_CV: Tensor, labels_C: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return loss, correctness and the gradient in the logits' place."""
    best_C = _shift(logits_CV)
    labels_C1 = labels_C[:, None]
    label_C = logits_CV.gather(1, labels_C1)[:, 0]
    loss_C = _exponentiate(logits_CV) - label_C
    logits_CV.scatter_add_(1, labels_C1, logits_CV.new_full((1, 1), -1.0).expand_as(labels_C1))
    return loss_C, best_C == labels_C, logits_CV


def _teacher_chunk(logits_CV: Tensor, *, with_entropy: bool) -> tuple[Tensor, Tensor, Tensor | None]:
    """Return probabilities, the most likely tokens, and (for kl) sum q log q."""
    best_C = _shift(logits_CV)
    if not with_entropy:
        _exponentiate(logits_CV)
        return logits_CV, best_C, None
    probabilities_CV = logits_CV.clone()
    log_sum_C = _exponentiate(probabilities_CV)
    return probabilities_CV, best_C, _row_dot(probabilities_CV, logits_CV) - log_sum_C


def _soft_chunk(
    logits_CV: Tensor, teacher_CV: Tensor, teacher_best_C: Tensor, negative_entropy_C: Tensor | None
) -> tuple[Tensor, Tensor, Tensor]:
    """Return loss, correctness and the gradient in the logits' place."""
    best_C = _shift(logits_CV)
    cross_C = _row_dot(teacher_CV, logits_CV)
    loss_C = _exponentiate(logits_CV) - cross_C
    if negative_entropy_C is not None:
        loss_C = loss_C + negative_entropy_C
    return loss_C, best_C == teacher_best_C, logits_CV.sub_(teacher_CV)


def _shift(logits_CV: Tensor) -> Tensor:
    """Subtract each row's maximum in place and return where it stands, [C]."""
    top_C1, best_C1 = logits_CV.max(dim=1, keepdim=True)
    logits_CV.sub_(top_C1)
    return best_C1[:, 0]


def _exponentiate(shifted_CV: Tensor) -> Tensor:
    """Turn shifted logits into probabilities in place and return the log of each row's sum, [C]."""
    sum_C1 = shifted_CV.exp_().sum(dim=1, keepdim=True)
    shifted_CV.div_(sum_C1)
    return sum_C1[:, 0].log()


def _row_dot(left_CV: Tensor, right_CV: Tensor) -> Tensor:
    """Return the dot product of each pair of rows, [C], without a [C, V] product."""
    return torch.bmm(left_CV[:, None, :], right_CV[:, :, None])[:, 0, 0]
