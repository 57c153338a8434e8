"""Models that are built from a configuration alone, and the masks that they make."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from dflash_doctor.engines.models import build_causal_lm
from dflash_doctor.errors import DoctorError
from dflash_doctor.records.trace import AllocationTrace, Storage
from tests.doctor.engines.tracing import Step, made_in_step, trace_step

TOKENS = 88
TINY: dict[str, Any] = {
    "model_type": "qwen3", "vocab_size": 500, "hidden_size": 64, "intermediate_size": 96,
    "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16,
}  # fmt: skip


def parameters(model: nn.Module) -> list[Tensor]:
    return list(model.parameters())


def test_a_model_is_built_on_meta_in_its_final_dtype() -> None:
    before = torch.get_default_dtype()
    model = build_causal_lm(TINY, dtype=torch.bfloat16, attention="sdpa")
    assert {(p.device.type, p.dtype) for p in parameters(model)} == {("meta", torch.bfloat16)}
    assert torch.get_default_dtype() == before


@pytest.mark.parametrize(("tied", "matrices"), [(True, 1), (False, 2)])
def test_the_config_says_whether_embedding_and_head_are_one(tied: bool, matrices: int) -> None:
    model = build_causal_lm({**TINY, "tie_word_embeddings": tied}, dtype=torch.float32, attention="sdpa")
    assert [tuple(p.shape) for p in parameters(model)].count((500, 64)) == matrices


def test_a_config_is_not_changed_by_building() -> None:
    config = dict(TINY)
    build_causal_lm(config, dtype=torch.float32, attention="eager")
    assert config == TINY


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"model_type": "nonesuch"}, "transformers cannot build the model 'nonesuch'"),
        ({"model_type": ""}, "transformers cannot build the model ''"),
        ({"num_hidden_layers": "two"}, "transformers cannot build the model 'qwen3'"),
    ],
)
def test_what_transformers_refuses_is_a_clear_error(changes: dict[str, Any], says: str) -> None:
    with pytest.raises(DoctorError, match=says) as caught:
        build_causal_lm({**TINY, **changes}, dtype=torch.float32, attention="sdpa")
    assert caught.value.exit_code == 2


def trace_forward(position_ids: Tensor | None, attention: str = "sdpa") -> AllocationTrace:
    def build() -> Step:
        model = build_causal_lm(TINY, dtype=torch.bfloat16, attention=attention).eval()
        model.to_empty(device="meta")
        ids = torch.zeros(1, TOKENS, dtype=torch.long)
        positions = position_ids.to("meta") if position_ids is not None else None
        return torch.no_grad()(lambda: model(input_ids=ids, position_ids=positions, use_cache=False))

    return trace_step(build)


def squares(trace: AllocationTrace) -> list[Storage]:
    return [storage for storage in made_in_step(trace) if storage.shape[-2:] == (TOKENS, TOKENS)]


@pytest.mark.parametrize("counted", [None, torch.arange(TOKENS)[None]], ids=["no-ids", "counting-ids"])
def test_position_ids_that_count_are_not_taken_for_packed(counted: Tensor | None) -> None:
    trace = trace_forward(counted)
    assert squares(trace) == []
    assert all(read.known for read in trace.value_reads)


def test_position_ids_of_packed_documents_make_a_mask() -> None:
    packed = torch.cat([torch.arange(40), torch.arange(TOKENS - 40)])[None]
    trace = trace_forward(packed)
    assert (1, 1, TOKENS, TOKENS) in {storage.shape for storage in squares(trace)}
    assert all(read.known for read in trace.value_reads)


def test_eager_attention_makes_scores_of_every_head() -> None:
    scores = [
        storage
        for storage in squares(trace_forward(None, "eager"))
        if storage.shape == (1, 4, TOKENS, TOKENS)
    ]
    assert {storage.site.op for storage in scores} >= {"aten._softmax.default"}
