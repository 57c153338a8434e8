import pytest
import torch
from torch.nn import functional as F

from dflash_train.models.anchors import get_base_indices_for_anchored_blocks, teacher_indices
from dflash_train.models.loss import LOSS_KINDS, default_chunk_rows, frozen_head_loss
from tests.train.tiny import LivePeak


def problem(rows: int = 37, vocab: int = 53, hidden: int = 8):
    generator = torch.Generator().manual_seed(0)

    def draw(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    weights = draw(rows).abs()
    weights[::5] = 0
    labels = torch.randint(vocab, (rows,), generator=generator)
    return draw(rows, hidden).requires_grad_(), 3 * draw(vocab, hidden), weights, labels, draw(rows, hidden)


def naive_loss(kind, hidden, head, weights, labels, teacher):
    logits = hidden @ head.T
    log_q = F.log_softmax(teacher @ head.T, -1)
    if kind == "ce":
        losses = F.cross_entropy(logits, labels, reduction="none")
    elif kind == "ce_teacher":
        losses = -(log_q.exp() * F.log_softmax(logits, -1)).sum(-1)
    else:
        losses = F.kl_div(F.log_softmax(logits, -1), log_q, log_target=True, reduction="none").sum(-1)
    truth = labels if kind == "ce" else log_q.argmax(-1)
    return (losses * weights).sum() / weights.sum(), logits.argmax(-1) == truth


@pytest.mark.parametrize("kind", LOSS_KINDS)
@pytest.mark.parametrize("chunk_rows", [1, 8, 37, 64])
def test_loss_and_gradient_equal_full_logits(kind, chunk_rows):
    hidden, head, weights, labels, teacher = problem()
    expected, correct = naive_loss(kind, hidden, head, weights, labels, teacher)
    (expected_grad,) = torch.autograd.grad(2.5 * expected, hidden)
    own = frozen_head_loss(
        hidden,
        head,
        weights,
        kind=kind,
        labels_P=labels,
        teacher_hidden_PH=teacher,
        chunk_rows=chunk_rows,
    )
    (own_grad,) = torch.autograd.grad(2.5 * own.loss, hidden)
    torch.testing.assert_close(own.loss, expected, atol=1e-10, rtol=0)
    torch.testing.assert_close(own_grad, expected_grad, atol=1e-10, rtol=0)
    assert torch.equal(own.correct_P, correct)


def test_stated_weight_sum_replaces_the_own():
    hidden, head, weights, labels, _ = problem()
    whole = frozen_head_loss(hidden, head, weights, labels_P=labels).loss
    parts = [
        frozen_head_loss(
            hidden[rows], head, weights[rows], labels_P=labels[rows], weight_sum=weights.sum()
        ).loss
        for rows in (slice(0, 20), slice(20, None))
    ]
    torch.testing.assert_close(sum(parts), whole)


def test_no_supervised_row_gives_zero_loss_and_gradient():
    hidden, head, weights, labels, _ = problem()
    loss = frozen_head_loss(hidden, head, torch.zeros_like(weights), labels_P=labels).loss
    (grad,) = torch.autograd.grad(loss, hidden)
    assert float(loss.detach()) == 0.0
    assert not grad.any()


@pytest.mark.parametrize("kind", LOSS_KINDS)
def test_bfloat16_softmax_runs_in_float32(kind):
    hidden, head, weights, labels, teacher = problem()
    hidden16 = hidden.detach().bfloat16().requires_grad_()
    head16, teacher16 = head.bfloat16(), teacher.bfloat16()
    own = frozen_head_loss(
        hidden16, head16, weights.float(), kind=kind, labels_P=labels, teacher_hidden_PH=teacher16
    )
    expected, _ = naive_loss(kind, hidden16.double(), head16.double(), weights, labels, teacher16.double())
    assert own.loss.dtype == torch.float32
    assert float(own.loss.detach()) == pytest.approx(float(expected.detach()), rel=2e-2)
    own.loss.backward()
    assert hidden16.grad is not None
    assert hidden16.grad.dtype == torch.bfloat16


def test_evaluation_computes_no_gradient():
    hidden, head, weights, labels, _ = problem()
    with torch.no_grad():
        result = frozen_head_loss(hidden, head, weights, labels_P=labels)
    assert not result.loss.requires_grad


def test_project_all_roll_and_index_is_index_minus_one_then_project():
    total, block = 23, 4
    generator = torch.Generator().manual_seed(0)
    last = torch.randn(1, total, 8, generator=generator, dtype=torch.float64)
    head = torch.randn(31, 8, generator=generator, dtype=torch.float64)
    rolled = torch.roll(last @ head.T, 1, dims=1)
    for anchor in range(total - block + 1):
        index = get_base_indices_for_anchored_blocks(torch.tensor([anchor]), block, total)
        selected = last[0, teacher_indices(index, total)] @ head.T
        torch.testing.assert_close(selected, rolled[0, index], atol=1e-12, rtol=0)


def peak_bytes(kind: str, rows: int, vocab: int = 4096, hidden: int = 4) -> int:
    head = torch.zeros(vocab, hidden)
    states = torch.zeros(rows, hidden, requires_grad=True)
    weights, labels = torch.ones(rows), torch.zeros(rows, dtype=torch.int64)
    with LivePeak(head, states, weights, labels) as peak:
        frozen_head_loss(
            states,
            head,
            weights,
            kind=kind,
            labels_P=labels,
            teacher_hidden_PH=states.detach(),
            chunk_rows=32,
        ).loss.backward()
    return peak.peak


@pytest.mark.parametrize(("kind", "buffers"), [("ce", 1), ("ce_teacher", 2), ("kl", 2)])
def test_peak_is_a_chunk_whatever_the_rows(kind, buffers):
    chunk = 32 * 4096 * 4
    few, many = peak_bytes(kind, 64), peak_bytes(kind, 2048)
    per_row = 2 * 4 * 4 + 4 + 1  # two gradients of four floats, a scale and a flag
    assert many - few <= (2048 - 64) * per_row
    assert buffers * chunk < few < (buffers + 0.1) * chunk


def test_bfloat16_chunk_holds_one_float32_buffer_and_one_narrow():
    rows, vocab, hidden = 256, 4096, 4
    head = torch.zeros(vocab, hidden, dtype=torch.bfloat16)
    states = torch.zeros(rows, hidden, dtype=torch.bfloat16, requires_grad=True)
    weights, labels = torch.ones(rows), torch.zeros(rows, dtype=torch.int64)
    with LivePeak(head, states, weights, labels) as peak:
        frozen_head_loss(states, head, weights, labels_P=labels, chunk_rows=64).loss.backward()
    assert peak.peak < 64 * vocab * (4 + 2) * 1.1


def test_default_chunk_follows_the_vocabulary():
    assert default_chunk_rows(248_320) == 256
    assert default_chunk_rows(151_936) == 384
    assert default_chunk_rows(32_000) == 2048
    assert default_chunk_rows(10_000_000) == 128


def test_missing_inputs_are_refused():
    hidden, head, weights, labels, _ = problem()
    with pytest.raises(ValueError, match="ce, ce_teacher, kl, got 'mse'"):
        frozen_head_loss(hidden, head, weights, kind="mse", labels_P=labels)
    with pytest.raises(ValueError, match="'ce' needs labels, one for each of 37 rows"):
        frozen_head_loss(hidden, head, weights)
    with pytest.raises(ValueError, match="'kl' needs teacher hidden states"):
        frozen_head_loss(hidden, head, weights, kind="kl", labels_P=labels)
