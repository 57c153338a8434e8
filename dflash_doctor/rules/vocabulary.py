"""DF0: tensors as wide as the vocabulary that are made for nothing, or in one piece."""

from collections.abc import Iterable, Iterator

from dflash_doctor.records.finding import Finding, Fix
from dflash_doctor.records.reads import PartlyRead, Unread, base_name
from dflash_doctor.records.trace import Site
from dflash_doctor.rules.context import RuleContext, caller_of, output_name, shape_text
from dflash_doctor.rules.rule import Rule
from dflash_doctor.units import format_bytes

PRODUCTS = frozenset({"mm", "addmm", "bmm", "baddbmm", "matmul", "linear", "einsum", "_scaled_mm"})


def is_logits(site: Site, shape: tuple[int, ...], vocab_size: int | None) -> bool:
    """Say whether a storage is the product of hidden states with an output embedding."""
    if len(shape) < 2 or shape[-1] != vocab_size:
        return False
    return base_name(site.op) in PRODUCTS or site.module.endswith("lm_head")


class UnusedFullVocabLogits(Rule):
    """Find full-vocabulary logits that nobody reads.

    ## What it does

    Looks for the output of an lm_head, a matrix product as wide as the vocabulary, whose storage is freed
    without any op having taken it, or a view or copy of it, as an input.

    ## Why it costs

    Logits take rows x vocabulary x bytes of a number: 65,536 x 248,320 x 2 B = 30.31 GiB for one packed row
    of Qwen3.6-27B, as much as half of its weights, for one moment, to be thrown away.

    A causal LM of transformers computes logits by default, for every position: `logits_to_keep=0` keeps all
    of them. `output_hidden_states=False` does not stop it, nor does ignoring the result, nor capturing
    hidden states by hooks. What does: `logits_to_keep=1`, or calling the body, which has no lm_head.

    ## Example

        model = AutoModelForCausalLM.from_pretrained(name)
        model(input_ids=ids, output_hidden_states=False, use_cache=False)   # hooks take the features

    ## Instead

        model.model(input_ids=ids, use_cache=False)        # or model.base_model: hidden states only
        model(input_ids=ids, logits_to_keep=1)             # where the causal LM itself must be called

    ## How safe the fix is

    Safe: the body computes the same hidden states, and hooks on its layers fire as before. Only code that
    reads `.logits` of the output would notice, and the trace shows that there is none.

    ## Known limits

    Logits that the step hands back to its caller are still alive when the trace ends; they are reported as
    likely, not as proved. A vocabulary split over several GPUs, or padded, is not recognised.
    """

    code = "DF001"
    name = "unused-full-vocab-logits"
    severity = "error"
    needs = ("trace", "vocabulary")

    def check(self, context: RuleContext) -> Iterable[Finding]:
        """Report unread products, and those of which only unread copies were made."""
        for role in context.op_traces():
            vocab_size = context.vocabulary(role)
            for item in context.unread.get(role, ()):
                if is_logits(item.site, item.shape, vocab_size):
                    yield self._report(context, role, item, is_certain=not item.alive_at_end)
            for partly in context.partly_read.get(role, ()):
                if partly.rows_read == 0 and is_logits(partly.site, partly.shape, vocab_size):
                    yield self._report(context, role, partly, is_certain=True)

    def _report(
        self, context: RuleContext, role: str, item: Unread | PartlyRead, *, is_certain: bool
    ) -> Finding:
        gpus = context.gpus(role)
        name, shape, size = output_name(item.site), shape_text(item.shape), format_bytes(item.bytes)
        where = caller_of(item.site)
        is_planned = role == "target" and context.plan is not None and context.plan.target_step is None
        return self.finding(
            f"{name} {shape} is never read: {size}",
            gpus=gpus,
            num_bytes=item.bytes,
            severity=context.weigh(item.bytes, gpus),
            confidence="proved" if is_certain else "likely",
            site=item.site,
            fix=Fix(
                text="call the body, `model.model(...)` or `model.base_model(...)`, which gives hidden "
                "states without logits; or pass `logits_to_keep=1`"
                + (f"; called from {where}" if where else ""),
                safety="safe" if is_certain else "needs-care",
                setting='target.forward = "body"' if is_planned else None,
            ),
        )


class FullSequenceLogits(Rule):
    """Find logits computed for every row of which only some rows are read.

    ## What it does

    Looks for the output of an lm_head, a matrix product as wide as the vocabulary, whose readers take only
    some of its rows. The data is followed through roll, transpose, cast and copy to the index or slice that
    reads it; the rows read are at most as many as the index has elements.

    ## Why it costs

    A row is projected on its own, so a row that nobody selects is paid for in full: its share of the matrix
    product and of the memory, and the same again for each copy. In the founding crash, 65,536 rows are
    projected (30.31 GiB), rolled by one (30.31 GiB more), and 512 anchors x 16 = 8,192 rows are read: 12.5
    %.

    ## Example

        logits = verifier_lm_head(verifier_norm(hidden))     # every row
        logits = torch.roll(logits, 1, dims=1)               # a second full tensor
        targets = logits[:, index]                           # an eighth of the rows

    ## Instead

        rows = hidden[:, (index - 1) % hidden.shape[1]]      # undo the roll in the index
        targets = verifier_lm_head(verifier_norm(rows))

    ## How safe the fix is

    Safe: norm and lm_head work on each row alone, so selecting first gives the same rows. Where a roll by
    one stands between, the index becomes index - 1, row 0 taking the last row as the roll does. A matrix
    product of another height may round the last bit differently.

    ## Known limits

    The rows read are an upper bound: several readers are added up, repeated indices count each time, and a
    reader of some columns counts as a reader of whole rows. Only movement, casts and scaling are followed;
    any other op counts as a reader of everything.
    """

    code = "DF002"
    name = "full-sequence-logits"
    severity = "error"
    needs = ("trace", "vocabulary")

    def check(self, context: RuleContext) -> Iterable[Finding]:
        """Report products of which some rows, but not all, are read."""
        for role in context.op_traces():
            for item in context.partly_read.get(role, ()):
                if item.rows_read and is_logits(item.site, item.shape, context.vocabulary(role)):
                    yield self._report(context, role, item)

    def _report(self, context: RuleContext, role: str, item: PartlyRead) -> Finding:
        gpus = context.gpus(role)
        copies = list(_copies(item))
        unused = round((item.bytes + sum(num_bytes for _, num_bytes in copies)) * (1 - item.share))
        extra = "".join(f", and {format_bytes(size)} again by {op}" for op, size in copies)
        is_rolled = any(op == "roll" for op, _ in copies)
        is_planned = role == "drafter" and context.plan is not None and context.plan.draft_step is None
        return self.finding(
            f"{output_name(item.site)} {shape_text(item.shape)}: {item.rows_read:,} of "
            f"{item.rows_total:,} rows read, {item.share:.1%}".replace("%", " %")
            + f"; {format_bytes(item.bytes)}{extra}",
            gpus=gpus,
            num_bytes=item.bytes,
            severity=context.weigh(unused, gpus),
            site=item.site,
            fix=Fix(
                text="select the rows first and project them after"
                + (", at index - 1 because of the roll" if is_rolled else "")
                + f": {item.rows_read:,} rows instead of {item.rows_total:,}",
                safety="safe",
                setting='loss.projection = "selected"' if is_planned else None,
            ),
        )


def _copies(item: PartlyRead) -> Iterator[tuple[str, int]]:
    """Give op and bytes of the whole copies in a chain."""
    for step in item.chain:
        if step.kind == "moved":
            yield base_name(step.site.op), step.bytes
