"""DF0, continued: losses over the vocabulary in one piece, and their copies in float32."""

from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Iterable

from dflash_doctor.records.finding import Finding, Fix
from dflash_doctor.records.reads import base_name, numel
from dflash_doctor.records.trace import AllocationTrace, Storage
from dflash_doctor.rules.context import GIB, RuleContext, shape_text
from dflash_doctor.rules.rule import Rule
from dflash_doctor.units import format_bytes

LOSS_OPS = frozenset({"_log_softmax", "_softmax", "log_softmax", "softmax"})
CASTS = frozenset({"_to_copy", "to", "copy_"})
HALF = frozenset({"bfloat16", "float16"})
MIN_LOSS_BYTES = GIB
MIN_UPCAST_BYTES = GIB // 2
MIN_PIECES = 4
"""Pieces within a phase from which work is taken for chunked; two or three may be as many steps."""


class UnchunkedVocabLoss(Rule):
    """Find a loss over the whole vocabulary that is computed in one piece.

    ## What it does

    Looks for a softmax or log-softmax whose output is [rows, vocabulary], and adds up all tensors of
    that size that live together with it: logits, their float32 copies, what autograd saves, and gradients.
    Reports where they exceed 1 GiB.

    ## Why it costs

    Autograd keeps the log-softmax until the backward pass, which makes gradients of the same size. With
    8,192 rows and a vocabulary of 248,320, logits in bfloat16 take 3.79 GiB and each float32 tensor 7.58
    GiB; three or four of them live at once.

    ## Example

        loss = F.cross_entropy(lm_head(hidden).float(), labels)
        loss.backward()

    ## Instead

        for rows in hidden.split(chunk_rows):       # logits, loss and d loss / d hidden of one chunk
            ...                                     # only the gradient of the rows is kept

    The lm_head of a drafter is frozen, so the gradient with respect to the hidden states can be computed in
    the forward pass, chunk by chunk, and no logits need to be kept.

    ## How safe the fix is

    Safe: the loss is a sum over rows; chunks change the order of additions and nothing else.

    ## Known limits

    A loss that runs in four or more pieces within one phase is taken for chunked and not reported, however
    large its pieces are. A loss by logsumexp, or by a fused kernel, makes no softmax of this width and is
    not seen.
    """

    code = "DF003"
    name = "unchunked-vocab-loss"
    severity = "error"
    needs = ("trace", "vocabulary")

    def check(self, context: RuleContext) -> Iterable[Finding]:
        """Report each site whose wide tensors live together in more than 1 GiB."""
        for role, trace in context.op_traces().items():
            wide = _wide_storages(trace, context.vocabulary(role))
            sites = _at_loss_ops(trace, wide)
            for made in _whole_pieces(trace, sites):
                together = _alive_together(made, wide)
                num_bytes = sum(s.bytes for s in together)
                if num_bytes > MIN_LOSS_BYTES:
                    yield self._report(context, role, made, together, num_bytes)

    def _report(
        self, context: RuleContext, role: str, made: Storage, together: list[Storage], num_bytes: int
    ) -> Finding:
        gpus = context.gpus(role)
        is_planned = role == "drafter" and context.plan is not None and context.plan.draft_step is None
        count = f"{len(together)} tensors" if len(together) > 1 else "1 tensor"
        return self.finding(
            f"vocabulary {base_name(made.site.op).lstrip('_')} {shape_text(made.shape)} runs in one piece: "
            f"{count} of this size alive together, {format_bytes(num_bytes)}",
            gpus=gpus,
            num_bytes=num_bytes,
            severity=context.weigh(num_bytes, gpus),
            site=made.site,
            fix=Fix(
                text="compute logits, loss and the gradient of the hidden states chunk by chunk of rows, "
                "and keep only that gradient",
                safety="safe",
                setting="loss.chunked = true" if is_planned else None,
            ),
        )


class Float32LogitsUpcast(Rule):
    """Find full copies of half-precision logits in float32.

    ## What it does

    Looks for a cast of a bfloat16 or float16 tensor as wide as the vocabulary to float32, of more than
    512 MiB, in one piece.

    ## Why it costs

    The copy takes twice the bytes of the logits and lives beside them: 8,192 rows of 248,320 cost 7.58 GiB
    on top of 3.79 GiB. The softmax after it needs the precision, but not the tensor.

    ## Example

        F.log_softmax(logits.float(), -1)

    ## Instead

        F.log_softmax(logits, -1, dtype=torch.float32)      # the kernel casts while it reads

    or a loss in chunks of rows, in which the copy is small (DF003).

    ## How safe the fix is

    Safe: the same float32 arithmetic on the same values; the kernel converts each number as it loads it.

    ## Known limits

    Casts that run in four or more pieces within one phase are taken for a chunked loss and not reported.
    """

    code = "DF004"
    name = "float32-logits-upcast"
    severity = "error"
    needs = ("trace", "vocabulary")

    def check(self, context: RuleContext) -> Iterable[Finding]:
        """Report each site that casts wide half-precision tensors."""
        for role, trace in context.op_traces().items():
            wide = _wide_storages(trace, context.vocabulary(role))
            casts: dict[int, Storage] = {}
            for op in trace.ops:
                if base_name(op.site.op) not in CASTS:
                    continue
                if any(_dtype(wide[r.storage]) in HALF for r in op.reads if r.storage in wide):
                    casts.update(
                        {w: wide[w] for w in op.writes if w in wide and _dtype(wide[w]) == "float32"}
                    )
            gpus = context.gpus(role)
            for made in _whole_pieces(trace, casts):
                if made.bytes > MIN_UPCAST_BYTES:
                    yield self.finding(
                        f"logits {shape_text(made.shape)} are copied to float32: {format_bytes(made.bytes)}",
                        gpus=gpus,
                        num_bytes=made.bytes,
                        severity=context.weigh(made.bytes, gpus),
                        site=made.site,
                        fix=Fix(
                            text="let the kernel cast, `log_softmax(logits, -1, dtype=torch.float32)`, "
                            "or compute the loss in chunks of rows",
                            safety="safe",
                        ),
                    )


def _dtype(storage: Storage) -> str:
    return storage.dtype.removeprefix("torch.")


def _wide_storages(trace: AllocationTrace, vocab_size: int | None) -> dict[int, Storage]:
    """Give the storages made by an op whose last dimension is the vocabulary."""
    return {
        s.id: s for s in trace.storages if s.born_at >= 0 and len(s.shape) >= 2 and s.shape[-1] == vocab_size
    }


def _at_loss_ops(trace: AllocationTrace, wide: dict[int, Storage]) -> dict[int, Storage]:
    return {
        w: wide[w] for op in trace.ops if base_name(op.site.op) in LOSS_OPS for w in op.writes if w in wide
    }


def _whole_pieces(trace: AllocationTrace, storages: dict[int, Storage]) -> list[Storage]:
    """Give the largest storage of each site that does not work in several pieces."""
    groups: dict[tuple[object, ...], list[Storage]] = defaultdict(list)
    for storage in storages.values():
        groups[(storage.site.module, storage.site.op, storage.site.stack[:1])].append(storage)
    stretch = _stretches(trace, set(storages))
    return [
        max(group, key=lambda s: s.bytes) for group in groups.values() if not _is_in_pieces(group, stretch)
    ]


def _stretches(trace: AllocationTrace, wanted: set[int]) -> dict[int, int]:
    """Give the number of the phase in which each wanted storage of a steady step is born."""
    first, last = trace.steady or (0, len(trace.events))
    starts = [phase.start for phase in trace.phases]
    return {
        event - 1: bisect_right(starts, position)
        for position, event in enumerate(trace.events)
        if event > 0 and event - 1 in wanted and first <= position < last
    }


def _is_in_pieces(group: list[Storage], stretch: dict[int, int]) -> bool:
    """Say whether one phase makes several of these, each gone before the next comes."""
    gone: dict[int, float] = {}
    pieces: Counter[int] = Counter()
    for storage in sorted(group, key=lambda s: s.born_at):
        phase = stretch.get(storage.id)
        if phase is not None and gone.get(phase, -1) < storage.born_at:
            pieces[phase] += 1
            gone[phase] = _last(storage)
    return max(pieces.values(), default=0) >= MIN_PIECES


def _alive_together(made: Storage, wide: dict[int, Storage]) -> list[Storage]:
    """Give the heaviest set of storages of one size that are alive at one moment of a storage's life."""
    end = _last(made)
    overlapping = [
        s
        for s in wide.values()
        if s.born_at <= end and _last(s) >= made.born_at and numel(s.shape) == numel(made.shape)
    ]
    moments = {max(s.born_at, made.born_at) for s in overlapping}
    sets = ([s for s in overlapping if s.born_at <= moment <= _last(s)] for moment in moments)
    return max(sets, key=lambda alive: sum(s.bytes for s in alive), default=[made])


def _last(storage: Storage) -> float:
    return float("inf") if storage.died_at is None else storage.died_at
