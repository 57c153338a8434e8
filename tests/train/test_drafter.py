"""Compare with z-lab's own package: equal weights must give equal outputs."""

import time

import dflash.model as zlab
import pytest
import torch
import torch._dynamo
from torch import Tensor
from transformers import Qwen3ForCausalLM

from dflash_train.models.anchors import place_blocks
from dflash_train.models.attention import ContextCache
from dflash_train.models.drafter import Drafter, layer_patterns
from dflash_train.models.masks import LayerPattern, build_masks
from dflash_train.models.tables import random_tables
from dflash_train.optim import MasterAdamW
from dflash_train.steps import LossSettings, allocate_slot, draft_loss, synthetic_draft_batch
from tests.train import tiny

FULL = ["full_attention"] * 3
SLIDING = ["sliding_attention"] * 3
MIXED = ["sliding_attention", "sliding_attention", "full_attention"]


def pair(layer_types: list[str], is_causal: bool | None = None, **sizes: int):
    """Build our drafter and z-lab's with equal weights, norms included."""
    config = tiny.drafter(layer_types, **sizes)
    if is_causal is not None:
        config.is_causal = is_causal
    config._attn_implementation = "sdpa"
    torch.manual_seed(0)
    ours, theirs = Drafter(config), zlab.DFlashDraftModel(config).eval()
    with torch.no_grad():
        for parameter in ours.parameters():
            parameter.copy_(torch.randn_like(parameter) * 0.3 + (parameter.dim() == 1))
    theirs.load_state_dict(ours.state_dict(), strict=True)
    return ours, theirs


def training_inputs(ours: Drafter, lengths: tuple[int, ...] = (9, 14), anchors=(0, 3, 8, 9, 15, 20)):
    blocks = place_blocks(lengths, torch.tensor(anchors), ours.block_size)
    generator = torch.Generator().manual_seed(1)
    features = torch.randn(1, sum(lengths), 3 * tiny.HIDDEN, generator=generator)
    embeddings = torch.randn(1, blocks.num_rows, tiny.HIDDEN, generator=generator)
    context = torch.cat([torch.arange(length) for length in lengths])
    block = blocks.anchors_A - blocks.document_start_A
    positions = torch.cat((context, (block[:, None] + torch.arange(ours.block_size)).reshape(-1)))[None]
    return blocks, embeddings, features, positions


def test_state_dict_has_the_released_layout():
    ours, theirs = pair(FULL)
    own = {name: tuple(tensor.shape) for name, tensor in ours.state_dict().items()}
    assert own == {name: tuple(tensor.shape) for name, tensor in theirs.state_dict().items()}
    assert len(own) == 11 * 3 + 3
    assert own["fc.weight"] == (tiny.HIDDEN, 3 * tiny.HIDDEN)
    assert own["layers.2.self_attn.k_norm.weight"] == (8,)


@pytest.mark.parametrize(("layer_types", "is_causal"), [(FULL, None), (SLIDING, None), (SLIDING, False)])
@pytest.mark.parametrize("recompute", [False, True])
def test_training_forward_equals_zlab_under_the_block_mask(layer_types, is_causal, recompute):
    ours, theirs = pair(layer_types, is_causal)
    ours.recompute = recompute
    blocks, embeddings, features, positions = training_inputs(ours)
    masks = build_masks(blocks, ours.patterns, "sdpa")
    own = ours(embeddings, features, positions, masks)
    expected = theirs(
        position_ids=positions,
        attention_mask=masks[ours.patterns[0]],
        noise_embedding=embeddings,
        target_hidden=features,
    )
    assert (own - expected).abs().max() <= 1e-5
    own_grads = torch.autograd.grad(own.square().sum(), list(ours.parameters()))
    their_grads = torch.autograd.grad(expected.square().sum(), [p for _, p in named_like(ours, theirs)])
    for (name, _), left, right in zip(ours.named_parameters(), own_grads, their_grads, strict=True):
        torch.testing.assert_close(left, right, atol=1e-3, rtol=1e-3, msg=name)


def named_like(ours: Drafter, theirs: torch.nn.Module):
    parameters = dict(theirs.named_parameters())
    return [(name, parameters[name]) for name, _ in ours.named_parameters()]


@pytest.mark.parametrize("layer_types", [FULL, SLIDING, MIXED])
@torch.no_grad()
def test_training_forward_equals_each_block_drafted_alone_by_zlab(layer_types):
    ours, theirs = pair(layer_types)
    blocks, embeddings, features, positions = training_inputs(ours)
    own = ours(embeddings, features, positions, build_masks(blocks, ours.patterns, "sdpa"))
    size = ours.block_size
    for block, anchor in enumerate(blocks.anchors_A.tolist()):
        start = int(blocks.document_start_A[block])
        rows = slice(block * size, (block + 1) * size)
        alone = theirs(
            position_ids=torch.arange(anchor - start + size)[None],
            noise_embedding=embeddings[:, rows],
            target_hidden=features[:, start:anchor],
        )
        assert (own[:, rows] - alone).abs().max() <= 1e-5


@pytest.mark.parametrize("layer_types", [FULL, SLIDING, MIXED])
@torch.no_grad()
def test_cached_drafts_equal_zlab(layer_types):
    ours, theirs = pair(layer_types)
    cache, their_cache = ContextCache(), zlab._make_cache(theirs.config)
    generator = torch.Generator().manual_seed(2)
    start = 0
    for accepted in (11, 1, 4, 3, 2):
        features = torch.randn(1, accepted, 3 * tiny.HIDDEN, generator=generator)
        embeddings = torch.randn(1, ours.block_size, tiny.HIDDEN, generator=generator)
        positions = torch.arange(start, start + accepted + ours.block_size)[None]
        start += accepted
        expected = theirs(
            position_ids=positions,
            noise_embedding=embeddings,
            target_hidden=features,
            past_key_values=their_cache,
            use_cache=True,
        )
        zlab._crop_to(their_cache, start)
        assert (ours.draft(embeddings, features, cache) - expected).abs().max() <= 1e-5
        assert cache.num_tokens == start


class CachedStandIn(torch.nn.Module):
    """Answer z-lab's generation loop with our cached drafter."""

    def __init__(self, ours: Drafter) -> None:
        super().__init__()
        self.ours, self.config, self.cache = ours, ours.config, ContextCache()
        self.block_size, self.mask_token_id = ours.block_size, ours.mask_token_id
        self.target_layer_ids = list(ours.target_layer_ids)

    def forward(self, target_hidden: Tensor, noise_embedding: Tensor, past_key_values, **kwargs) -> Tensor:
        rows = torch.zeros(1, 2, target_hidden.shape[1] + noise_embedding.shape[1], 8)
        for layer in range(self.config.num_hidden_layers):
            past_key_values.update(rows, rows, layer)
        return self.ours.draft(noise_embedding, target_hidden, self.cache)

    def compute_logits(self, hidden: Tensor, head: torch.nn.Module) -> Tensor:
        return head(hidden)


def test_generation_loop_of_zlab_draws_the_same_tokens_from_both():
    ours, theirs = pair(FULL)
    torch.manual_seed(3)
    target = Qwen3ForCausalLM(tiny.qwen3()).eval()
    drafts: list[Tensor] = []
    theirs.register_forward_hook(lambda module, args, output: drafts.append(output))
    stand_in = CachedStandIn(ours)
    own_drafts: list[Tensor] = []
    stand_in.register_forward_hook(lambda module, args, output: own_drafts.append(output))
    prompt = torch.arange(1, 8)[None]
    expected = zlab.dflash_generate(theirs, target, prompt, 20, None)
    assert torch.equal(zlab.dflash_generate(stand_in, target, prompt, 20, None), expected)
    assert len(own_drafts) == len(drafts) >= 3
    for own, their in zip(own_drafts, drafts, strict=True):
        assert (own - their).abs().max() <= 1e-5


def test_patterns_follow_layer_types_and_stated_causality():
    config = tiny.drafter(MIXED)
    sliding = LayerPattern(window=5, causal=True)
    assert layer_patterns(config) == (sliding, sliding, LayerPattern())
    config.dflash_config["causal"] = False
    assert layer_patterns(config) == (LayerPattern(window=5), LayerPattern(window=5), LayerPattern())
    config.is_causal = True
    assert layer_patterns(config) == (sliding, sliding, LayerPattern(causal=True))


@torch.no_grad()
def test_flex_equals_sdpa_in_the_whole_drafter(monkeypatch):
    monkeypatch.setattr(torch, "compile", lambda function, **options: function)
    ours, _ = pair(MIXED)
    blocks, embeddings, features, positions = training_inputs(ours)
    dense = ours(embeddings, features, positions, build_masks(blocks, ours.patterns, "sdpa"))
    flex = ours(embeddings, features, positions, build_masks(blocks, ours.patterns, "flex"))
    assert (flex - dense).abs().max() <= 1e-5


@torch.no_grad()
def test_new_masks_of_one_size_compile_once(monkeypatch):
    compile_for_real = torch.compile
    monkeypatch.setattr(
        torch, "compile", lambda f, **options: compile_for_real(f, backend="eager", **options)
    )
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    ours, _ = pair(MIXED)
    for anchors in ((0, 3, 8, 9, 15, 20), (1, 2, 7, 9, 14, 22)):
        blocks, embeddings, features, positions = training_inputs(ours, anchors=anchors)
        dense = ours(embeddings, features, positions, build_masks(blocks, ours.patterns, "sdpa"))
        flex = ours(embeddings, features, positions, build_masks(blocks, ours.patterns, "flex"))
        assert (flex - dense).abs().max() <= 1e-5
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == 1


def test_recomputation_changes_no_gradient():
    grads = []
    for recompute in (False, True):
        ours, _ = pair(MIXED)
        ours.recompute = recompute
        blocks, embeddings, features, positions = training_inputs(ours)
        masks = build_masks(blocks, ours.patterns, "sdpa")
        ours(embeddings, features, positions, masks).square().sum().backward()
        grads.append([p.grad for p in ours.parameters()])
    assert all(torch.equal(left, right) for left, right in zip(*grads, strict=True))


def founding_config():
    target = tiny.qwen3_5(64)
    target.hidden_size, target.vocab_size, target.intermediate_size = 5120, 248320, 17408
    return tiny.draft_config(target, target_layer_ids=(1, 16, 31, 46, 61), mask_token_id=248070)


def test_construction_on_meta_is_instant():
    start = time.perf_counter()
    ours = Drafter(founding_config(), device="meta", dtype=torch.bfloat16)
    assert time.perf_counter() - start < 1.0
    assert sum(p.numel() for p in ours.parameters()) == 1_730_213_120
    assert {p.dtype for p in ours.parameters()} == {torch.bfloat16}


def test_the_founding_step_stays_below_forty_gib(monkeypatch):
    """Count live bytes of the 27B drafter's step on meta, a stand-in allocating what a fused kernel does."""
    monkeypatch.setattr(torch, "compile", lambda function, **options: function)
    monkeypatch.setattr(torch.nn.attention.flex_attention, "flex_attention", fused_stand_in)
    drafter = Drafter(founding_config(), device="meta", dtype=torch.bfloat16, recompute=True)
    tables = random_tables(248320, 5120, dtype=torch.bfloat16, device="meta")
    slot = allocate_slot(65536, 5, 5120, dtype=torch.bfloat16, device="meta")
    optimizer = MasterAdamW(drafter.named_parameters())
    batch = synthetic_draft_batch(65536, 512, 16, 4096, "meta", backend="flex")
    tensors = [*drafter.parameters(), *optimizer.state_tensors()]
    tensors += [tables.embedding_VH, tables.head_VH, slot.features_TF]
    resident = sum(tensor.nbytes for tensor in tensors)
    with tiny.LivePeak(*tensors) as peak:
        draft_loss(drafter, tables, batch, slot, LossSettings()).loss.backward()
        backward_peak = peak.peak
        optimizer.step(1e-3)
    assert (resident + backward_peak) / 2**30 < 38.0
    assert peak.peak == backward_peak


class FusedStandIn(torch.autograd.Function):
    """Allocate what a fused kernel does: output and logsumexp, then the three gradients."""

    @staticmethod
    def forward(ctx, q, k, v):
        out, lse = torch.empty_like(q), q.new_empty(q.shape[:-1], dtype=torch.float32)
        ctx.save_for_backward(q, k, v, out, lse)
        return out

    @staticmethod
    def backward(ctx, grad):
        q, k, v, *_ = ctx.saved_tensors
        return torch.empty_like(q), torch.empty_like(k), torch.empty_like(v)


def fused_stand_in(q, k, v, **options):
    return FusedStandIn.apply(q, k, v)
