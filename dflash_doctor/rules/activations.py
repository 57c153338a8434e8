"""DF1: activations that grow with the square of the tokens."""

from collections.abc import Iterable, Iterator

from dflash_doctor.records.finding import Finding, Fix
from dflash_doctor.records.reads import base_name
from dflash_doctor.records.trace import AllocationTrace, Storage
from dflash_doctor.rules.context import RuleContext, shape_text
from dflash_doctor.rules.rule import Rule
from dflash_doctor.units import format_bytes

MIN_SIDE = 4_096
"""Queries and keys from which a dense mask is worth a word."""


class DenseAttentionMask(Rule):
    """Find attention masks that are stored densely, one number for each pair of tokens.

    ## What it does

    Looks for a tensor whose last two dimensions are both at least 4,096 and that an attention op takes as
    its mask or bias, and for boolean tensors of that form, whoever reads them.

    ## Why it costs

    A mask of [queries, keys] grows with the square of the sequence: 65,536 tokens make 4 GiB of booleans,
    and 8 GiB more once SDPA has turned them into a bfloat16 bias. A mask also keeps SDPA from its flash
    kernel. transformers builds one for packed position ids, and for padding.

    ## Example

        mask = document_ids[:, None] == document_ids[None, :]           # [T, T]
        F.scaled_dot_product_attention(q, k, v, attn_mask=mask)

    ## Instead

        F.scaled_dot_product_attention(q, k, v, is_causal=True)         # one document, or rows of one length
        flash_attn_varlen_func(q, k, v, cu_seqlens, ...)                # packed documents
        torch.compile(flex_attention)(q, k, v, block_mask=block_mask)   # any rule, stored by blocks

    ## How safe the fix is

    Needs care: whatever replaces the mask must keep documents apart and padding out. Compare a packed row
    with its documents run alone.

    ## Known limits

    Scores that eager attention computes are no mask and are not reported, though they grow in the same way.
    """

    code = "DF104"
    name = "dense-attention-mask"
    severity = "error"
    needs = ("trace",)

    def check(self, context: RuleContext) -> Iterable[Finding]:
        """Report the largest such tensor of each site."""
        for role, trace in context.op_traces().items():
            largest: dict[object, Storage] = {}
            for mask in _dense_masks(trace, context.vocabulary(role)):
                key = (mask.site.module, mask.site.op, mask.site.stack[:1])
                if key not in largest or mask.bytes > largest[key].bytes:
                    largest[key] = mask
            gpus = context.gpus(role)
            for mask in largest.values():
                grade = context.weigh(mask.bytes, gpus)
                yield self.finding(
                    f"dense attention mask {shape_text(mask.shape)} of {mask.dtype.removeprefix('torch.')}, "
                    f"quadratic in tokens: {format_bytes(mask.bytes)}",
                    gpus=gpus,
                    num_bytes=mask.bytes,
                    severity="warning" if grade == "info" else grade,
                    site=mask.site,
                    fix=Fix(
                        text="run documents, or rows of one length, with `is_causal=True`; or use "
                        "variable-length flash attention or a compiled flex attention block mask",
                        safety="needs-care",
                    ),
                )


def _dense_masks(trace: AllocationTrace, vocab_size: int | None) -> Iterator[Storage]:
    storages = {s.id: s for s in trace.storages if s.bytes >= MIN_SIDE**2}
    yield from (s for s in storages.values() if s.dtype.endswith("bool") and _is_square(s.shape, vocab_size))
    for op in trace.ops:
        name = base_name(op.site.op).lower()
        if "attention" in name or "sdpa" in name:
            for read in op.reads:
                if read.storage in storages and _is_square(read.shape, vocab_size):
                    yield storages[read.storage]


def _is_square(shape: tuple[int, ...], vocab_size: int | None) -> bool:
    return len(shape) >= 2 and min(shape[-2:]) >= MIN_SIDE and shape[-1] != vocab_size
