from types import SimpleNamespace

import pytest
import torch
from transformers.integrations.sdpa_attention import sdpa_attention_forward

from dflash_train.models.causal_attention import causal_attention, check_layer_types


def inputs(length: int, key_heads: int = 2, head_dim: int = 8):
    generator = torch.Generator().manual_seed(0)
    query = torch.randn(2, 4, length, head_dim, generator=generator)
    key = torch.randn(2, key_heads, length, head_dim, generator=generator)
    value = torch.randn(2, key_heads, length, head_dim, generator=generator)
    return query, key, value


def module(**attributes):
    return SimpleNamespace(num_key_value_groups=2, is_causal=True, **attributes)


@pytest.mark.parametrize("window", [None, 64])
@pytest.mark.parametrize("head_dim", [8, 320])
def test_full_attention_is_that_of_transformers(window, head_dim):
    query, key, value = inputs(17, head_dim=head_dim)
    expected, _ = sdpa_attention_forward(module(), query, key, value, None, scaling=0.3)
    own, weights = causal_attention(module(), query, key, value, None, scaling=0.3, sliding_window=window)
    assert weights is None
    torch.testing.assert_close(own, expected, atol=1e-6, rtol=0)


@pytest.mark.parametrize("length", [5, 6, 17])
def test_sliding_attention_is_that_of_transformers_under_its_mask(length):
    query, key, value = inputs(length)
    back = torch.arange(length)[:, None] - torch.arange(length)
    mask = ((back >= 0) & (back < 5))[None, None]
    expected, _ = sdpa_attention_forward(module(), query, key, value, mask, scaling=0.3)
    own, _ = causal_attention(module(), query, key, value, None, scaling=0.3, sliding_window=5)
    torch.testing.assert_close(own, expected, atol=1e-6, rtol=0)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"softcap": 50.0}, "softcap"),
        ({"s_aux": torch.zeros(4)}, "s_aux"),
        ({"is_causal": False}, "no causality"),
        ({"attention_mask": torch.ones(1, 1, 3, 3, dtype=torch.bool)}, "a mask"),
    ],
)
def test_what_is_not_computed_is_refused(arguments, words):
    mask = arguments.pop("attention_mask", None)
    with pytest.raises(ValueError, match=words):
        causal_attention(module(), *inputs(3), mask, **arguments)


def test_unknown_layer_types_are_refused():
    check_layer_types(SimpleNamespace(layer_types=["full_attention", "linear_attention"]))
    check_layer_types(SimpleNamespace(layer_types=None))
    with pytest.raises(ValueError, match="chunked_attention"):
        check_layer_types(SimpleNamespace(layer_types=["chunked_attention"]))
