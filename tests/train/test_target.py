import gc
import weakref

import pytest
import torch
from transformers import AutoModelForCausalLM
from transformers.models.qwen3_5.configuration_qwen3_5 import Qwen3_5Config
from transformers.models.qwen3_5.modeling_qwen3_5 import Qwen3_5ForConditionalGeneration

from dflash_train.models.target import (
    SubRow,
    Target,
    build_target,
    check_layer_ids,
    find_layers,
    load_target,
    split_sub_rows,
    target_layer_ids,
)
from tests.train import tiny

IDS = (1, 3, 5)


def reference_features(config, input_ids, layer_ids=IDS):
    """Run transformers' own causal LM with its own attention, with the weights that seed 0 gives."""
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config, attn_implementation="sdpa").eval()
    with torch.no_grad():
        last = {}
        find_layers(model.base_model)[-1].register_forward_hook(
            lambda module, args, output: last.update(x=output[0] if isinstance(output, tuple) else output)
        )
        states = model(input_ids=input_ids, output_hidden_states=True, use_cache=False).hidden_states
    return model, torch.cat([states[i + 1] for i in layer_ids], -1), last["x"]


def wrap(model, **options) -> Target:
    """Build our target with the weights of a causal LM."""
    target = build_target(model.config, IDS, dtype=torch.float32, device="cpu", **options)
    weights = {
        name: t for name, t in model.base_model.state_dict().items() if name in target.body.state_dict()
    }
    target.body.load_state_dict(weights)
    return target


def test_layer_ids_follow_the_formula():
    assert target_layer_ids(32, 5) == (1, 8, 15, 22, 29)
    assert target_layer_ids(36, 5) == (1, 9, 17, 25, 33)
    assert target_layer_ids(40, 5) == (1, 10, 19, 28, 37)
    assert target_layer_ids(64, 5) == (1, 16, 31, 46, 61)
    assert target_layer_ids(40, 8) == (1, 6, 11, 16, 22, 27, 32, 37)
    assert target_layer_ids(28, 1) == (14,)


@pytest.mark.parametrize(("num_layers", "num_features"), [(4, 2), (8, 6), (0, 1), (8, 0), (3, 5)])
def test_too_few_layers_are_refused(num_layers, num_features):
    with pytest.raises(ValueError, match="layer"):
        target_layer_ids(num_layers, num_features)


@pytest.mark.parametrize("ids", [(), (8,), (-1, 2), (3, 3), (4, 2)])
def test_explicit_layer_ids_are_checked(ids):
    with pytest.raises(ValueError):
        check_layer_ids(ids, 8)


def test_sub_rows_batch_equal_documents_and_never_cut_one():
    assert split_sub_rows([4, 4, 4, 3, 9, 4], 8) == [
        SubRow(0, 2, 4),
        SubRow(8, 1, 4),
        SubRow(12, 1, 3),
        SubRow(15, 1, 9),
        SubRow(24, 1, 4),
    ]
    assert split_sub_rows([4, 4], 7) == [SubRow(0, 1, 4), SubRow(4, 1, 4)]
    assert split_sub_rows([4, 3], 0) == [SubRow(0, 1, 7)]


@pytest.mark.parametrize(("lengths", "rows"), [([4], -1), ([], 8), ([4, 0], 8)])
def test_sub_rows_refuse(lengths, rows):
    with pytest.raises(ValueError):
        split_sub_rows(lengths, rows)


@pytest.mark.parametrize("name", list(tiny.target_configs()))
def test_features_are_hidden_states_of_transformers(name):
    input_ids = torch.arange(24).view(2, 12) % tiny.VOCAB
    model, features, last = reference_features(tiny.target_configs()[name], input_ids)
    target = wrap(model, with_last_hidden=True)
    out, last_out = torch.full((24, 96), 7.0), torch.empty(24, tiny.HIDDEN)
    target.write_features(input_ids, out, last_out)
    torch.testing.assert_close(out, features.view(24, 96), atol=1e-5, rtol=0)
    torch.testing.assert_close(last_out, last.view(24, tiny.HIDDEN), atol=1e-5, rtol=0)


def test_final_norm_of_the_last_hidden_state_gives_the_teachers_logits():
    input_ids = torch.arange(12)[None]
    model, _, _ = reference_features(tiny.qwen3(), input_ids)
    target = wrap(model, with_last_hidden=True)
    assert target.final_norm is not None
    out, last = torch.empty(12, 96), torch.empty(12, tiny.HIDDEN)
    target.write_features(input_ids, out, last)
    with torch.no_grad():
        logits = model.lm_head(target.final_norm(last))
        torch.testing.assert_close(logits, model(input_ids).logits[0], atol=1e-5, rtol=0)


def test_layers_behind_the_last_feature_can_be_left_out():
    input_ids = torch.arange(12)[None]
    model, features, _ = reference_features(tiny.qwen3_5(), input_ids)
    target = wrap(model, stop_after_last_feature=True)
    assert len(find_layers(target.body)) == 6
    out = torch.empty(12, 96)
    target.write_features(input_ids, out)
    torch.testing.assert_close(out, features[0], atol=1e-5, rtol=0)
    with pytest.raises(ValueError, match="needs all layers"):
        build_target(
            tiny.qwen3(),
            IDS,
            dtype=torch.float32,
            device="meta",
            with_last_hidden=True,
            stop_after_last_feature=True,
        )


def test_a_layers_output_dies_before_the_next_layer_but_one():
    target = build_target(tiny.qwen3(), IDS, dtype=torch.float32, device="cpu")
    outputs: list[weakref.ref] = []
    alive: list[int] = []

    def watch(module, args, output):
        outputs.append(weakref.ref(output))
        gc.collect()
        alive.append(sum(ref() is not None for ref in outputs))

    for layer in find_layers(target.body):
        layer.register_forward_hook(watch)
    target.write_features(torch.arange(12)[None], torch.empty(12, 96))
    assert max(alive) <= 2
    assert len(outputs) == 8


def test_no_head_and_no_hook_remains():
    target = build_target(tiny.qwen3(), IDS, dtype=torch.float32, device="cpu")
    target.write_features(torch.arange(12)[None], torch.empty(12, 96))
    assert not any("lm_head" in name for name, _ in target.named_modules())
    assert not any(layer._forward_hooks for layer in find_layers(target.body))
    assert not any(p.requires_grad for p in target.parameters())
    assert not target.train().training


def test_slots_of_another_shape_are_refused():
    target = build_target(tiny.qwen3(), IDS, dtype=torch.float32, device="meta")
    ids = torch.empty(1, 12, dtype=torch.int64, device="meta")
    with pytest.raises(ValueError, match=r"\[12, 96\] is needed, got \[12, 64\]"):
        target.write_features(ids, torch.empty(12, 64, device="meta"))
    with pytest.raises(ValueError, match="without its last hidden state"):
        target.write_features(ids, torch.empty(12, 96, device="meta"), torch.empty(12, 32, device="meta"))


@pytest.mark.parametrize("name", list(tiny.target_configs()))
def test_target_runs_on_meta_in_its_dtype(name):
    target = build_target(
        tiny.target_configs()[name], IDS, dtype=torch.bfloat16, device="meta", with_last_hidden=True
    )
    assert {p.dtype for p in target.parameters()} == {torch.bfloat16}
    out = torch.empty(24, 96, dtype=torch.bfloat16, device="meta")
    ids = torch.empty(2, 12, dtype=torch.int64, device="meta")
    target.write_features(ids, out, out.new_empty(24, 32))


def test_load_takes_the_body_of_a_saved_model(tmp_path):
    input_ids = torch.arange(12)[None]
    model, features, _ = reference_features(tiny.qwen3(), input_ids)
    model.save_pretrained(tmp_path)
    for stop in (False, True):
        target = load_target(
            str(tmp_path), IDS, dtype=torch.float32, device="cpu", stop_after_last_feature=stop
        )
        out = torch.empty(12, 96)
        target.write_features(input_ids, out)
        torch.testing.assert_close(out, features[0], atol=1e-5, rtol=0)


def test_load_takes_the_text_body_of_a_multimodal_checkpoint(tmp_path):
    config = Qwen3_5Config(
        text_config=tiny.qwen3_5().to_dict(), vision_config={"depth": 1, "hidden_size": 32}
    )
    torch.manual_seed(0)
    model = Qwen3_5ForConditionalGeneration(config).eval()
    model.save_pretrained(tmp_path)
    target = load_target(str(tmp_path), IDS, dtype=torch.float32, device="cpu")
    state = target.body.state_dict()
    for name, tensor in model.model.language_model.state_dict().items():
        if name != "norm.weight":
            assert torch.equal(state[name], tensor), name


def test_unknown_models_are_named(tmp_path):
    missing = str(tmp_path / "no-such-model")
    with pytest.raises(ValueError, match=r"no-such-model.* is neither a folder"):
        load_target(missing, IDS, dtype=torch.float32, device="cpu", local_files_only=True)


def test_missing_weights_are_named(tmp_path):
    model, _, _ = reference_features(tiny.qwen3(4), torch.arange(4)[None], (1,))
    model.save_pretrained(tmp_path)
    config = tiny.qwen3(6)
    config.architectures = ["Qwen3ForCausalLM"]
    config.save_pretrained(tmp_path)
    with pytest.raises(ValueError, match=r"lacks 22 weights of the body, first layers.4."):
        load_target(str(tmp_path), (1, 4), dtype=torch.float32, device="cpu")
