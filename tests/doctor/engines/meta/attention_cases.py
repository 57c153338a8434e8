"""Cases of attention: flash, memory-efficient and math, forward and backward."""

import torch
from torch import Tensor

from tests.doctor.engines.meta.cases import BF16, BOOL, FP16, FP32, Case, Made

CASES: dict[str, Case] = {}


def attend(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None = None, *, causal: bool, dropout: float
) -> Tensor:
    """Attend as a model does: heads are views of [B, T, H * D]; the output is put together again."""
    grouped = query.shape[2] != key.shape[2]
    query, key, value = (tensor.transpose(1, 2) for tensor in (query, key, value))
    out = torch.nn.functional.scaled_dot_product_attention(
        query, key, value, attn_mask=mask, dropout_p=dropout, is_causal=causal, enable_gqa=grouped
    )
    return out.transpose(1, 2).flatten(2)


def case(
    name: str,
    heads: tuple[int, int],
    rows: tuple[int, int],
    width: int | tuple[int, int],
    dtype: torch.dtype = BF16,
    *,
    batch: int = 2,
    trains: bool = True,
    causal: bool = False,
    mask: Made | None = None,
    dropout: float = 0.0,
) -> None:
    """Enter a case; heads and rows are those of queries and keys, widths those of keys and values."""
    key_width, value_width = (width, width) if isinstance(width, int) else width
    sizes = [(rows[0], heads[0], key_width), (rows[1], heads[1], key_width), (rows[1], heads[1], value_width)]
    tensors = [Made((batch, *size), dtype, trains) for size in sizes]

    def forward(*made: Tensor) -> Tensor:
        return attend(*made, causal=causal, dropout=dropout)

    CASES[f"attention-{name}"] = Case(forward, (*tensors, *([mask] if mask else [])))


def square(length: int, dtype: torch.dtype, *lead: int, grad: bool = False) -> Made:
    return Made((*lead, length, length), dtype, grad)


for dtype in (BF16, FP16, FP32):
    for width in (32, 64, 72, 96, 128, 160, 192, 200, 256):
        for trains in (False, True):
            how = "train" if trains else "forward"
            case(
                f"{str(dtype)[6:]}-{width}-{how}",
                (8, 8),
                (500, 500),
                width,
                dtype,
                trains=trains,
                causal=True,
            )

case("split-keys-64", (4, 4), (64, 16_384), 64, batch=1, trains=False)
case("split-keys-128", (8, 8), (128, 5_000), 128, batch=1, trains=False)
case("split-keys-256", (2, 2), (64, 9_000), 256, batch=1, trains=False)
case("grouped", (16, 4), (512, 512), 128, causal=True)
case("grouped-float32", (16, 4), (512, 512), 64, FP32, causal=True)
case("grouped-mask", (8, 2), (512, 512), 64, mask=square(512, BOOL, 2, 1))
case("boolean-mask", (8, 8), (512, 512), 64, mask=square(512, BOOL, 2, 1))
case("boolean-mask-forward", (8, 8), (512, 512), 64, trains=False, mask=square(512, BOOL, 2, 1))
case("boolean-mask-of-odd-length", (8, 8), (509, 509), 64, mask=square(509, BOOL, 2, 1))
case(
    "boolean-mask-of-odd-keys", (8, 8), (100, 333), 64, trains=False, mask=Made((2, 1, 100, 333), BOOL, False)
)
case("float-mask-of-odd-length", (8, 8), (509, 509), 64, mask=square(509, BF16, 2, 1))
case("float-mask", (8, 8), (512, 512), 128, FP16, mask=square(512, FP16))
case("mask-float32", (8, 8), (512, 512), 64, FP32, mask=square(512, FP32, 2, 1))
case("mask-160", (8, 8), (700, 700), 160, batch=1, mask=square(700, BF16, 1, 1))
case("mask-256", (8, 8), (512, 512), 256, mask=square(512, BOOL, 2, 1))
case("mask-with-gradient", (8, 8), (512, 512), 64, mask=square(512, BF16, 2, 8, grad=True))
case("shared-mask-with-gradient", (8, 8), (112, 112), 64, FP32, mask=square(112, FP32, 1, 1, grad=True))
case("dropout", (8, 8), (512, 512), 64, causal=True, dropout=0.1)
case("dropout-float32", (8, 8), (512, 512), 64, FP32, causal=True, dropout=0.1)
case("dropout-256", (8, 8), (512, 512), 256, causal=True, dropout=0.1)
case("values-wider-than-keys", (8, 8), (512, 512), (64, 128))
case("values-narrower-than-keys", (8, 8), (512, 512), (192, 128), causal=True)
case("float64", (4, 4), (128, 128), 64, torch.float64, batch=1, causal=True)
