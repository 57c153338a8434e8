import pytest
from transformers import Gemma3TextConfig

from dflash_train.models.draft_config import draft_config
from dflash_train.models.drafter import check_drafter_config
from tests.train import tiny


def test_config_has_the_layout_of_released_drafters():
    config = draft_config(tiny.qwen3_5(), target_layer_ids=(1, 3, 5), mask_token_id=90)
    values = config.to_dict()
    assert values["architectures"] == ["DFlashDraftModel"]
    assert values["model_type"] == "qwen3"
    assert values["block_size"] == 16
    assert values["dflash_config"] == {"target_layer_ids": [1, 3, 5], "mask_token_id": 90, "block_size": 16}
    assert values["num_target_layers"] == 8
    assert values["layer_types"] == ["full_attention"] * 5
    assert (values["num_attention_heads"], values["num_key_value_heads"], values["head_dim"]) == (32, 8, 128)
    assert (values["hidden_size"], values["vocab_size"]) == (tiny.HIDDEN, tiny.VOCAB)


def test_rope_is_the_plain_theta_of_the_target():
    target = tiny.qwen3_5()
    config = draft_config(target, target_layer_ids=(1,), mask_token_id=0)
    assert config.rope_parameters == {
        "rope_type": "default",
        "rope_theta": target.rope_parameters["rope_theta"],
    }
    gemma = draft_config(Gemma3TextConfig(), target_layer_ids=(1,), mask_token_id=0)
    assert gemma.rope_parameters["rope_theta"] == 1e6


def test_contradictions_are_refused():
    with pytest.raises(ValueError, match="2 draft layers but 1 layer types"):
        draft_config(
            tiny.qwen3(), target_layer_ids=(1,), mask_token_id=0, num_layers=2, layer_types=["full_attention"]
        )
    with pytest.raises(ValueError, match="outside the vocabulary of 97"):
        draft_config(tiny.qwen3(), target_layer_ids=(1,), mask_token_id=97)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"dflash_config": {"mask_token_id": 1}}, "lacks dflash_config.target_layer_ids"),
        ({"dflash_config": None}, "lacks dflash_config.target_layer_ids"),
        (
            {"dflash_config": {"mask_token_id": 1, "target_layer_ids": [1], "selector_rank": 256}},
            "DFlash2",
        ),
        ({"attention_bias": True}, "no attention bias"),
        ({"attention_dropout": 0.1}, "attention_dropout"),
        ({"layer_types": ["linear_attention"]}, "unknown layer type"),
        ({"layer_types": ["sliding_attention"], "sliding_window": None}, "needs sliding_window"),
    ],
)
def test_configs_of_other_drafters_are_refused(change, words):
    config = tiny.drafter()
    for key, value in change.items():
        setattr(config, key, value)
    with pytest.raises(ValueError, match=words):
        check_drafter_config(config)
