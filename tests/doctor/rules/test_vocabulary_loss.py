"""Fire and silence the rules on losses over the vocabulary."""

from dflash_doctor.rules.vocabulary_loss import Float32LogitsUpcast, UnchunkedVocabLoss
from tests.doctor.report_builder import plan
from tests.doctor.rules.test_vocabulary import V, check, context_of
from tests.doctor.trace_builder import TraceBuilder


def naive_loss(trace: TraceBuilder, rows: int) -> None:
    logits = trace.op("mm.default", out=(rows, V), module="lm_head", line=60)
    upcast = trace.op("_to_copy.default", logits, out=(rows, V), dtype="float32", line=61)
    trace.free(logits)
    saved = trace.op("_log_softmax.default", upcast, out=(rows, V), dtype="float32", line=61)
    trace.free(upcast)
    trace.phase("backward")
    gradient = trace.op("_log_softmax_backward_data.default", saved, out=(rows, V), dtype="float32", line=61)
    trace.free(saved, gradient)
    trace.phase("forward")


def chunked_loss(trace: TraceBuilder, rows: int, chunk: int) -> None:
    for _ in range(rows // chunk):
        logits = trace.op("mm.default", out=(chunk, V), module="lm_head", line=60)
        upcast = trace.op("_to_copy.default", logits, out=(chunk, V), dtype="float32", line=61)
        saved = trace.op("_softmax.default", upcast, out=(chunk, V), dtype="float32", line=62)
        trace.free(logits, upcast, saved)


def test_df003_fires_on_a_loss_in_one_piece() -> None:
    trace = TraceBuilder(role="drafter", vocab_size=V)
    for _ in range(3):
        naive_loss(trace, 8_192)
    context = context_of(trace.build(), plan=plan())
    (found,) = check(UnchunkedVocabLoss, context)
    assert found.message == (
        "vocabulary log_softmax [8192, 248320] runs in one piece: "
        "2 tensors of this size alive together, 15.16 GiB"
    )
    assert (found.severity, found.confidence, found.gpus) == ("error", "proved", (7,))
    assert (found.bytes, found.source) == (2 * 8_192 * V * 4, "model.py:61")
    assert found.fix is not None
    assert found.fix.setting == "loss.chunked = true"


def test_df003_takes_two_steps_of_one_phase_for_no_chunks() -> None:
    trace = TraceBuilder(role="drafter", vocab_size=V)
    chunked_loss(trace, 16_384, 8_192)
    (found,) = check(UnchunkedVocabLoss, context_of(trace.build()))
    assert found.bytes == 8_192 * V * (2 + 4 + 4)


def test_df003_is_silent_on_chunks_and_on_small_losses() -> None:
    chunked = TraceBuilder(role="drafter", vocab_size=V)
    chunked_loss(chunked, 8_192, 1_024)
    assert check(UnchunkedVocabLoss, context_of(chunked.build())) == []
    small = TraceBuilder(role="drafter", vocab_size=V)
    naive_loss(small, 256)
    assert check(UnchunkedVocabLoss, context_of(small.build())) == []


def test_df004_fires_on_a_full_copy_in_float32() -> None:
    trace = TraceBuilder(role="drafter", vocab_size=V)
    naive_loss(trace, 8_192)
    (found,) = check(Float32LogitsUpcast, context_of(trace.build()))
    assert found.message == "logits [8192, 248320] are copied to float32: 7.58 GiB"
    assert (found.severity, found.bytes, found.source) == ("warning", 8_192 * V * 4, "model.py:61")
    assert found.fix is not None
    assert "dtype=torch.float32" in found.fix.text


def test_df004_is_silent_on_chunks_small_copies_and_other_casts() -> None:
    chunked = TraceBuilder(role="drafter", vocab_size=V)
    chunked_loss(chunked, 8_192, 1_024)
    assert check(Float32LogitsUpcast, context_of(chunked.build())) == []
    other = TraceBuilder(role="drafter", vocab_size=V)
    naive_loss(other, 256)
    hidden = other.op("mm.default", out=(65_536, 5_120))
    other.op("_to_copy.default", hidden, out=(65_536, 5_120), dtype="float32")
    assert check(Float32LogitsUpcast, context_of(other.build())) == []
