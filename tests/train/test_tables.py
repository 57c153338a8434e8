import pytest
import torch
from transformers import AutoModelForCausalLM

from dflash_train.models.tables import random_tables, tables_from_causal_lm
from tests.train import tiny


@pytest.mark.parametrize("tied", [False, True])
def test_tables_share_the_models_memory(tied):
    config = tiny.qwen3()
    config.tie_word_embeddings = tied
    model = AutoModelForCausalLM.from_config(config)
    tables = tables_from_causal_lm(model, model.base_model.norm)
    assert tables.embedding_VH.data_ptr() == model.get_input_embeddings().weight.data_ptr()
    assert tables.head_VH.data_ptr() == model.lm_head.weight.data_ptr()
    assert (tables.head_VH is tables.embedding_VH) == tied
    assert not model.base_model.norm.weight.requires_grad
    moved = tables.to("meta")
    assert (moved.head_VH is moved.embedding_VH) == tied
    ids = torch.tensor([3, 3, 5])
    assert torch.equal(tables.embed(ids), model.get_input_embeddings().weight[ids])


def test_a_head_with_bias_is_refused():
    model = AutoModelForCausalLM.from_config(tiny.qwen3())
    model.lm_head.bias = torch.nn.Parameter(torch.zeros(tiny.VOCAB))
    with pytest.raises(ValueError, match="bias"):
        tables_from_causal_lm(model)


def test_random_tables_on_meta():
    tables = random_tables(248_320, 5120, dtype=torch.bfloat16, device="meta")
    assert tables.embedding_VH.nbytes + tables.head_VH.nbytes == 2 * 248_320 * 5120 * 2
    tied = random_tables(10, 4, dtype=torch.float32, device="cpu", tied=True)
    assert tied.head_VH is tied.embedding_VH
