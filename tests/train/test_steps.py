import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from dflash_train.models.anchors import place_blocks
from dflash_train.models.drafter import Drafter
from dflash_train.models.tables import random_tables
from dflash_train.models.target import build_target
from dflash_train.optim import MasterAdamW
from dflash_train.steps import (
    DraftBatch,
    LossSettings,
    allocate_slot,
    draft_step,
    prepare_draft_batch,
    prepare_target_batch,
    synthetic_document_lengths,
    synthetic_draft_batch,
    synthetic_target_batch,
    target_step,
)
from tests.train import tiny

MIXED = ["sliding_attention", "full_attention", "full_attention"]
IDS = (1, 3, 5)
LENGTHS = [12, 12, 9]


class NoReads(TorchDispatchMode):
    """Refuse device-to-host reads."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        name = str(func)
        assert "_local_scalar_dense" not in name and "nonzero" not in name, name
        return func(*args, **(kwargs or {}))


def setup(device: str = "cpu", dtype: torch.dtype = torch.float32, recompute: bool = False):
    """Build target, drafter, tables, optimizer and a slot for 36 tokens."""
    torch.manual_seed(0)
    target = build_target(tiny.qwen3_5(), IDS, dtype=dtype, device=device, with_last_hidden=True)
    drafter = Drafter(tiny.drafter(MIXED), device=device, dtype=dtype, recompute=recompute)
    tables = random_tables(tiny.VOCAB, tiny.HIDDEN, dtype=dtype, device=device, final_norm=target.final_norm)
    slot = allocate_slot(36, 3, tiny.HIDDEN, dtype=dtype, device=device, with_last_hidden=True)
    return target, drafter, tables, slot, MasterAdamW(drafter.named_parameters())


def draft_batch(drafter: Drafter, anchors=(0, 5, 11, 12, 23, 30), backend: str = "sdpa") -> DraftBatch:
    blocks = place_blocks(LENGTHS, torch.tensor(anchors), drafter.block_size, num_tokens=36)
    return prepare_draft_batch(
        torch.arange(36),
        LENGTHS,
        blocks,
        drafter_patterns=drafter.patterns,
        mask_token_id=drafter.mask_token_id,
        backend=backend,
    )


def test_batch_holds_what_the_blocks_predict():
    drafter = Drafter(tiny.drafter(MIXED), device="meta")
    batch = draft_batch(drafter, anchors=(0, 10))
    assert batch.block_ids_R.tolist() == [0, 96, 96, 96, 10, 96, 96, 96]
    assert batch.labels_P.tolist() == [1, 2, 3, 11, 0, 0]
    assert (batch.weights_P > 0).tolist() == [True, True, True, True, False, False]
    assert batch.teacher_rows_P.tolist() == [0, 1, 2, 10, 11, 12]
    assert batch.positions_S[30:].tolist() == [6, 7, 8, 0, 1, 2, 0, 1, 2, 3, 10, 11, 12, 13]
    assert set(batch.masks) == set(drafter.patterns)


def test_target_step_keeps_documents_apart_whatever_the_sub_rows():
    target, _, _, slot, _ = setup()
    ids = torch.arange(36)
    target_step(target, prepare_target_batch(ids, LENGTHS, 24), slot)
    alone = allocate_slot(12, 3, tiny.HIDDEN, dtype=torch.float32, device="cpu", with_last_hidden=True)
    assert alone.last_hidden_TH is not None
    assert slot.last_hidden_TH is not None
    start = 0
    for length in LENGTHS:
        rows = slice(start, start + length)
        target.write_features(ids[None, rows], alone.features_TF[:length], alone.last_hidden_TH[:length])
        torch.testing.assert_close(slot.features_TF[rows], alone.features_TF[:length], atol=1e-5, rtol=0)
        torch.testing.assert_close(
            slot.last_hidden_TH[rows], alone.last_hidden_TH[:length], atol=1e-5, rtol=0
        )
        start += length


def test_target_step_zeroes_the_padding():
    target, _, _, slot, _ = setup()
    slot.features_TF.fill_(float("nan"))
    target_step(target, prepare_target_batch(torch.arange(36), LENGTHS, 24), slot)
    assert slot.features_TF[:33].isfinite().all()
    assert not slot.features_TF[33:].any()
    assert slot.last_hidden_TH is not None
    assert not slot.last_hidden_TH[33:].any()


@pytest.mark.parametrize("kind", ["ce", "ce_teacher", "kl"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_draft_step_learns_its_row(kind, dtype):
    target, drafter, tables, slot, optimizer = setup(dtype=dtype)
    target_step(target, prepare_target_batch(torch.arange(36), LENGTHS, 24), slot)
    batch, settings = draft_batch(drafter), LossSettings(kind=kind)
    results = [draft_step(drafter, tables, batch, slot, optimizer, settings, lr=1e-2) for _ in range(30)]
    assert float(results[-1].loss) < float(results[0].loss) - 0.01
    assert float(results[0].weight_sum) == pytest.approx(float(batch.weights_P.sum()))
    assert results[0].supervised_b.tolist() == [4, 4, 3]
    assert (results[-1].correct_b <= results[-1].supervised_b).all()
    assert results[-1].grad_norm.isfinite()


def test_steps_read_nothing_back():
    target, drafter, tables, slot, optimizer = setup(dtype=torch.bfloat16, recompute=True)
    batch, row = draft_batch(drafter), prepare_target_batch(torch.arange(36), LENGTHS, 24)
    with NoReads():
        target_step(target, row, slot)
        for kind in ("ce", "kl"):
            draft_step(drafter, tables, batch, slot, optimizer, LossSettings(kind=kind), lr=1e-3)


@pytest.mark.parametrize("kind", ["ce", "ce_teacher", "kl"])
@pytest.mark.parametrize("recompute", [False, True])
def test_both_steps_run_on_meta(kind, recompute):
    target, drafter, tables, slot, optimizer = setup("meta", torch.bfloat16, recompute)
    row = prepare_target_batch(torch.arange(36), LENGTHS, 24).to("meta")
    batch, settings = draft_batch(drafter).to("meta"), LossSettings(kind=kind)
    with NoReads():
        target_step(target, row, slot)
        result = draft_step(drafter, tables, batch, slot, optimizer, settings, lr=1e-3)
    assert (result.loss.device.type, result.correct_b.shape) == ("meta", (3,))


def test_flex_batches_reach_the_swapped_kernel_on_meta(monkeypatch):
    _, drafter, tables, slot, optimizer = setup("meta", torch.bfloat16)
    seen = []

    def stand_in(q, k, v, *, block_mask, scale, enable_gqa):
        seen.append((tuple(q.shape), tuple(k.shape), block_mask.seq_lengths))
        return q * (k.mean() + v.mean())

    monkeypatch.setattr(torch, "compile", lambda function, **options: function)
    monkeypatch.setattr(torch.nn.attention.flex_attention, "flex_attention", stand_in)
    batch = draft_batch(drafter, backend="flex").to("meta")
    draft_step(drafter, tables, batch, slot, optimizer, LossSettings(), lr=1e-3)
    assert seen == [((1, 4, 24, 8), (1, 2, 60, 8), (24, 60))] * 3


def test_gradients_do_not_depend_on_chunks_or_recomputation():
    weights: list[list[Tensor]] = []
    for recompute, chunk_rows in ((False, None), (True, 5)):
        target, drafter, tables, slot, optimizer = setup(recompute=recompute)
        target_step(target, prepare_target_batch(torch.arange(36), LENGTHS, 24), slot)
        settings = LossSettings(kind="kl", chunk_rows=chunk_rows)
        draft_step(drafter, tables, draft_batch(drafter), slot, optimizer, settings, lr=1e-3)
        weights.append([moment.clone() for moment in optimizer.exp_avgs.values()])
    for left, right in zip(*weights, strict=True):
        torch.testing.assert_close(left, right, atol=1e-6, rtol=1e-4)


def test_teacher_losses_need_the_last_hidden_state():
    _, drafter, tables, _, optimizer = setup("meta")
    slot = allocate_slot(36, 3, tiny.HIDDEN, dtype=torch.float32, device="meta")
    with pytest.raises(ValueError, match="last hidden state"):
        draft_step(
            drafter,
            tables,
            draft_batch(drafter).to("meta"),
            slot,
            optimizer,
            LossSettings(kind="kl"),
            lr=1e-3,
        )


def test_synthetic_batches_have_the_sizes_asked_for():
    batch = synthetic_draft_batch(64, 8, 4, 24, "cpu", mask_token_id=7)
    assert batch.block_ids_R.shape == (32,)
    assert batch.labels_P.shape == batch.weights_P.shape == batch.teacher_rows_P.shape == (24,)
    assert batch.positions_S.shape == (96,)
    assert batch.block_ids_R[:5].tolist() == [0, 7, 7, 7, 8]
    row = synthetic_target_batch(64, 24, 48, "cpu")
    assert [(s.start, s.num_documents, s.length) for s in row.sub_rows] == [(0, 2, 24), (48, 1, 16)]
    assert synthetic_document_lengths(48, 24) == [24, 24]
    with pytest.raises(ValueError, match="positive"):
        synthetic_document_lengths(0, 24)
