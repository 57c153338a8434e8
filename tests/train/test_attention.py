import torch
import torch.nn.attention.flex_attention

from dflash_train.models.anchors import place_blocks
from dflash_train.models.attention import ContextCache, FlexKernel
from dflash_train.models.masks import LayerPattern, flex_mask, visible_ranges


def test_cache_keeps_context_and_drops_blocks():
    cache = ContextCache()
    first = torch.arange(5.0).view(1, 1, 5, 1)
    keys, values = cache.extend(0, first, -first, 3)
    assert (keys.flatten().tolist(), cache.num_tokens) == ([0, 1, 2, 3, 4], 3)
    second = torch.arange(10.0, 13.0).view(1, 1, 3, 1)
    keys, values = cache.extend(0, second, -second, 1)
    assert keys.flatten().tolist() == [0, 1, 2, 10, 11, 12]
    assert values.flatten().tolist() == [0, -1, -2, -10, -11, -12]
    assert cache.num_tokens == 4


def test_flex_is_compiled_once_an_instance_and_looked_up_at_call_time(monkeypatch):
    compiled, called = [], []

    def fake_compile(function, **options):
        compiled.append(options)
        return function

    def fake_flex(q, k, v, *, block_mask, scale, enable_gqa):
        called.append((block_mask, scale, enable_gqa))
        return q

    first, second = FlexKernel(), FlexKernel()
    monkeypatch.setattr(torch, "compile", fake_compile)
    monkeypatch.setattr(torch.nn.attention.flex_attention, "flex_attention", fake_flex)
    mask = flex_mask(visible_ranges(place_blocks([8], torch.tensor([2]), 4), LayerPattern())).block_mask
    q, k = torch.ones(1, 4, 4, 8), torch.ones(1, 2, 12, 8)
    for kernel in (first, first, second):
        assert kernel(q, k, k, mask, 0.5) is q
    assert compiled == [{"dynamic": False}] * 2
    assert called == [(mask, 0.5, True)] * 3
