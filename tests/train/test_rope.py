import pytest
import torch
from transformers import Qwen3Config
from transformers.models.qwen3.modeling_qwen3 import Qwen3RotaryEmbedding, apply_rotary_pos_emb

from dflash_train.models.rope import check_rope, rotary_tables, rotate
from tests.train import tiny


def config_with(**rope):
    return Qwen3Config(head_dim=16, max_position_embeddings=4096, rope_parameters=rope)


@pytest.mark.parametrize(
    "config",
    [
        config_with(rope_type="default", rope_theta=1e6),
        config_with(rope_type="yarn", rope_theta=1e6, factor=4.0, original_max_position_embeddings=1024),
    ],
    ids=["default", "yarn"],
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_tables_are_those_of_qwen3(config, dtype):
    positions = torch.tensor([[0, 1, 2, 0, 1, 4000]])
    expected = Qwen3RotaryEmbedding(config)(torch.empty(0, dtype=dtype), positions)
    for own, theirs in zip(rotary_tables(config, positions, dtype), expected, strict=True):
        assert torch.equal(own, theirs)


def test_rotation_is_that_of_qwen3():
    q, k = torch.randn(1, 4, 6, 8), torch.randn(1, 2, 6, 8)
    cos, sin = rotary_tables(tiny.qwen3(), torch.arange(6)[None], torch.float32)
    expected_q, expected_k = apply_rotary_pos_emb(q, k, cos, sin)
    assert torch.equal(rotate(q, cos, sin), expected_q)
    assert torch.equal(rotate(k, cos, sin), expected_k)


@pytest.mark.parametrize(
    ("extra", "words"),
    [
        ({"rope_type": "dynamic", "factor": 2.0}, "rope_type 'dynamic'"),
        ({"partial_rotary_factor": 0.25}, "partial_rotary_factor"),
        ({"mrope_section": [1, 1, 2]}, "mrope_section"),
    ],
)
def test_rotations_that_servers_do_not_apply_are_refused(extra, words):
    config = tiny.qwen3()
    config.rope_parameters = {"rope_type": "default", "rope_theta": 1e4, **extra}
    with pytest.raises(ValueError, match=words):
        check_rope(config)
