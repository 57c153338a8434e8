import pytest
import torch
from transformers import AutoModelForCausalLM

from dflash_train.baseline import baseline_draft_loss, baseline_target_features, baseline_verifier_targets
from dflash_train.models.anchors import get_base_indices_for_anchored_blocks, teacher_indices
from dflash_train.models.loss import frozen_head_loss
from dflash_train.models.target import build_target
from tests.train import tiny
from tests.train.tiny import LivePeak

IDS = (1, 3, 5)


@pytest.mark.parametrize("name", ["qwen3", "llama", "qwen3_5", "gpt2"])
def test_features_equal_those_of_the_body(name):
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(tiny.target_configs()[name]).eval()
    ids = torch.arange(12)[None]
    features, last = baseline_target_features(model, ids, IDS)
    target = build_target(
        tiny.target_configs()[name], IDS, dtype=torch.float32, device="cpu", with_last_hidden=True
    )
    body = {key: t for key, t in model.base_model.state_dict().items() if key in target.body.state_dict()}
    target.body.load_state_dict(body)
    out, last_out = torch.empty(12, 96), torch.empty(12, tiny.HIDDEN)
    target.write_features(ids, out, last_out)
    torch.testing.assert_close(features[0], out, atol=1e-5, rtol=0)
    torch.testing.assert_close(last[0], last_out, atol=1e-5, rtol=0)


def test_causal_lm_makes_logits_that_the_body_does_not():
    ids, logits_bytes = torch.arange(512)[None] % tiny.VOCAB, 512 * tiny.VOCAB * 4
    model = AutoModelForCausalLM.from_config(tiny.qwen3()).eval()
    seen: list[int] = []
    model.lm_head.register_forward_hook(lambda module, args, output: seen.append(output.nbytes))
    baseline_target_features(model, ids, IDS)
    assert seen == [logits_bytes]


def test_loss_equals_select_then_project_with_chunks():
    generator = torch.Generator().manual_seed(0)
    total, size, anchors = 23, 4, torch.tensor([0, 5, 19])
    last = torch.randn(1, total, 8, generator=generator, dtype=torch.float64)
    head = torch.randn(31, 8, generator=generator, dtype=torch.float64)
    hidden = torch.randn(1, 12, 8, generator=generator, dtype=torch.float64, requires_grad=True)
    weights = torch.rand(12, generator=generator, dtype=torch.float64)
    norm = torch.nn.LayerNorm(8, dtype=torch.float64)
    naive = baseline_draft_loss(hidden, last, norm, head, anchors, size, weights)
    rows = teacher_indices(get_base_indices_for_anchored_blocks(anchors, size, total), total)
    own = frozen_head_loss(
        hidden[0], head, weights, kind="kl", teacher_hidden_PH=norm(last[0, rows]).detach(), chunk_rows=5
    ).loss
    torch.testing.assert_close(own, naive.detach(), atol=1e-10, rtol=0)
    (expected,), (grad,) = torch.autograd.grad(naive, hidden), torch.autograd.grad(own, hidden)
    torch.testing.assert_close(grad, expected, atol=1e-10, rtol=0)


def test_loss_without_weights_is_the_mean_over_rows():
    last, hidden, head = torch.randn(1, 9, 8), torch.randn(1, 4, 8), torch.randn(31, 8)
    arguments = (hidden, last, torch.nn.Identity(), head, torch.tensor([2]), 4)
    plain = baseline_draft_loss(*arguments)
    torch.testing.assert_close(plain, baseline_draft_loss(*arguments, torch.ones(4)))


def test_naive_targets_project_the_whole_row():
    last, head = torch.zeros(1, 4096, 4), torch.zeros(64, 4)
    index = get_base_indices_for_anchored_blocks(torch.tensor([0]), 4, 4096)
    with LivePeak(last, head, index) as peak:
        baseline_verifier_targets(last, torch.nn.Identity(), head, index)
    assert peak.peak >= 2 * 4096 * 64 * 4
