"""Fire and silence the rule on dense attention masks."""

from dflash_doctor.rules.activations import DenseAttentionMask
from tests.doctor.rules.test_vocabulary import V, check, context_of
from tests.doctor.trace_builder import TraceBuilder

ATTENTION = "_scaled_dot_product_efficient_attention.default"


def attend(trace: TraceBuilder, tokens: int, bias: int | None) -> None:
    heads = tuple(trace.op("mm.default", out=(1, 24, tokens, 256)) for _ in range(3))
    mask = () if bias is None else ((bias, (1, 24, tokens, tokens)),)
    trace.op(ATTENTION, *heads, *mask, out=(1, 24, tokens, 256), module="self_attn", line=70)


def test_df104_fires_on_a_boolean_mask_and_on_the_bias_made_of_it() -> None:
    trace = TraceBuilder(vocab_size=V)
    mask = trace.op("eq.Tensor", out=(1, 1, 65_536, 65_536), dtype="bool", module="mask", line=5)
    bias = trace.op("where.self", mask, out=(1, 1, 65_536, 65_536), module="sdpa", line=6)
    for _ in range(3):
        attend(trace, 65_536, bias)
    found = check(DenseAttentionMask, context_of(trace.build()))
    assert [(f.severity, f.source, f.message) for f in found] == [
        ("warning", "model.py:5",
         "dense attention mask [1, 1, 65536, 65536] of bool, quadratic in tokens: 4.00 GiB"),
        ("warning", "model.py:6",
         "dense attention mask [1, 1, 65536, 65536] of bfloat16, quadratic in tokens: 8.00 GiB"),
    ]  # fmt: skip


def test_df104_is_silent_without_a_mask_on_small_ones_and_on_logits() -> None:
    trace = TraceBuilder(vocab_size=V)
    attend(trace, 65_536, None)
    small = trace.op("eq.Tensor", out=(1, 1, 2_048, 2_048), dtype="bool")
    attend(trace, 2_048, small)
    trace.op("eq.Tensor", out=(8_192, V), dtype="bool")
    assert check(DenseAttentionMask, context_of(trace.build())) == []
