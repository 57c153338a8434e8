"""Cases of single kernels: what reductions, products, norms, losses, indexing and optimizers allocate."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from tests.doctor.engines.meta.cases import BF16, BOOL, FP16, FP32, INT64, Case, Made, data, ids, leaf

CASES: dict[str, Case] = {}


def case(name: str, forward: Callable[..., Any], *begins_with: Made) -> None:
    CASES[name] = Case(forward, begins_with)


def name_of(dtype: torch.dtype) -> str:
    return str(dtype)[6:]


# -- reductions ------------------------------------------------------------------------------------

SHAPES: dict[str, tuple[tuple[int, ...], tuple[int, ...]]] = {
    "columns": ((65_536, 4_096), (0,)),
    "rows": ((333, 777_777), (1,)),
    "middle": ((4, 4_096, 32, 128), (1,)),
    "outer-two": ((8, 2_048, 1_024), (0, 1)),
    "narrow": ((100_001, 3), (0,)),
    "small": ((777, 333), (0,)),
}
for op in ("sum", "mean", "amax", "amin"):
    for where, (shape, dims) in SHAPES.items():
        for dtype in (BF16, FP32):
            case(
                f"{op}-{where}-{name_of(dtype)}",
                lambda x, op=op, dims=dims: getattr(torch, op)(x, dims),
                data(*shape, dtype=dtype),
            )
for op in ("max", "argmax", "argmin", "any", "all", "std", "var", "nansum"):
    case(f"{op}-columns", lambda x, op=op: getattr(torch, op)(x, 0), data(65_536, 1_024, dtype=FP32))
    case(f"{op}-rows", lambda x, op=op: getattr(torch, op)(x, 1), data(128, 300_000, dtype=FP32))
for op in ("sum", "mean", "amax", "max", "min", "argmax", "any", "std", "norm"):
    case(f"{op}-all", lambda x, op=op: getattr(torch, op)(x), data(4_096, 4_097, dtype=FP32))
case("sum-transposed", lambda x: x.t().sum(0), data(512, 40_000, dtype=FP32))
case("sum-expanded", lambda x: x.expand(40_000, 64).sum(0), data(40_000, 1, dtype=FP32))
case("sum-sliced", lambda x: x[:, 3:130].sum(0), data(40_000, 256, dtype=FP32))
case("sum-booleans", lambda x: x.sum(), data(4_000_000, dtype=BOOL))
case("sum-integers", lambda x: x.sum(0), data(100_000, 40, dtype=INT64))
case("sum-into-float32", lambda x: x.sum(0, dtype=FP32), data(65_536, 512))
case("vector-norm-columns", lambda x: torch.linalg.vector_norm(x, dim=0), data(500_000, 16, dtype=FP32))
case("vector-norm-all", lambda x: torch.linalg.vector_norm(x), data(10_000, 1_000))
case("logsumexp", lambda x: x.logsumexp(1), data(1_024, 50_000, dtype=FP32))
case("logsumexp-few-rows", lambda x: x.logsumexp(1), data(8, 1_000_000, dtype=FP32))
case("cumsum", lambda x: x.cumsum(0), data(100_000, dtype=FP32))
case("cumsum-integers", lambda x: x.cumsum(0), ids(100_000))
case("cumsum-booleans", lambda x: x.cumsum(0), data(100_000, dtype=BOOL))
case("cumsum-rows", lambda x: x.cumsum(1), data(64, 3_000, dtype=FP32))

# -- products --------------------------------------------------------------------------------------

WEIGHT, BIAS = leaf(300, 256), leaf(300)
case("linear", F.linear, leaf(4, 512, 256), WEIGHT)
case("linear-bias", F.linear, leaf(4, 512, 256), WEIGHT, BIAS)
case("linear-one-row", F.linear, leaf(4, 1, 256), WEIGHT, BIAS)
case("linear-strided", lambda x, w: F.linear(x[..., ::2], w), leaf(4, 512, 512), WEIGHT)
case("linear-transposed", lambda x, w, b: F.linear(x.transpose(1, 2), w, b), leaf(4, 256, 512), WEIGHT, BIAS)
case("linear-from-second-row", lambda x, w, b: F.linear(x[:, 1:], w, b), leaf(4, 513, 256), WEIGHT, BIAS)
case("bmm", torch.bmm, leaf(8, 100, 64), leaf(8, 64, 90))
case("bmm-strided", lambda a, b: a[..., ::2] @ b, leaf(8, 100, 128, dtype=FP32), leaf(8, 64, 90, dtype=FP32))
case("matmul-shared", torch.matmul, leaf(8, 100, 64), leaf(64, 90))
case("matmul-expanded", lambda a, b: a @ b.expand(2, 4, 64, 90), leaf(2, 4, 100, 64), leaf(1, 1, 64, 90))
case("matrix-vector", torch.mv, leaf(100, 64, dtype=FP32), leaf(64, dtype=FP32))
case("depthwise-convolution", lambda x, w: F.conv1d(x, w, padding=3, groups=512), leaf(2, 512, 1_000),
     leaf(512, 1, 4))  # fmt: skip

# -- elementwise and norms -------------------------------------------------------------------------

for dtype in (BF16, FP16, FP32):
    rows = leaf(64, 10_000, dtype=dtype)
    case(f"softmax-{name_of(dtype)}", lambda x: F.softmax(x, -1), rows)
    case(f"softmax-to-float32-{name_of(dtype)}", lambda x: F.softmax(x, -1, dtype=FP32), rows)
    case(f"log-softmax-to-float32-{name_of(dtype)}", lambda x: F.log_softmax(x, -1, dtype=FP32), rows)
    case(f"dropout-{name_of(dtype)}", lambda x: F.dropout(x, 0.1), rows)
    case(f"dropout-in-place-{name_of(dtype)}", lambda x: F.dropout(x * 1, 0.1, inplace=True), rows)
    case(f"silu-{name_of(dtype)}", F.silu, rows)
    case(f"gelu-{name_of(dtype)}", F.gelu, rows)
case("softmax-positional-dtype", lambda x: torch.softmax(x, -1, FP32), leaf(64, 10_000, dtype=FP16))
case("softmax-method", lambda x: x.softmax(-1, FP32), leaf(64, 10_000, dtype=FP16))
case("softmax-columns", lambda x: x.softmax(0), leaf(500, 1_000))
case("softmax-expanded-gradient", lambda x: x.softmax(-1).sum(), leaf(64, 10_000))
case("torch-dropout", lambda x: torch.dropout(x, 0.3, True), leaf(64, 10_000))
for count, width in ((100, 1_000), (20_000, 1_000), (200_000, 128), (70_000, 768)):
    norm = (leaf(count, width), leaf(width))
    case(f"layer-norm-{count}", lambda x, w, b: F.layer_norm(x, w.shape, w, b), *norm, leaf(width))
    case(f"rms-norm-{count}", lambda x, w: F.rms_norm(x, w.shape, w), *norm)
case("rms-norm-float32", lambda x, w: F.rms_norm(x, w.shape, w), leaf(2_000, 1_000, dtype=FP32),
     leaf(1_000, dtype=FP32))  # fmt: skip
case("rms-norm-of-two-dtypes", lambda x, w: F.rms_norm(x, w.shape, w), leaf(2_000, 1_000),
     leaf(1_000, dtype=FP32))  # fmt: skip
case("rms-norm-without-weight", lambda x: F.rms_norm(x, (1_000,)), leaf(2_000, 1_000))
case("rms-norm-frozen", lambda x, w: F.rms_norm(x, w.shape, w), leaf(2_000, 1_000), data(1_000))

# -- losses ----------------------------------------------------------------------------------------

LOGITS, LABELS, OTHERS = leaf(1_000, 5_000, dtype=FP32), ids(1_000), data(1_000, 5_000, dtype=FP32)
case("cross-entropy", F.cross_entropy, LOGITS, LABELS)
case("cross-entropy-upcast", lambda x, y: F.cross_entropy(x.float(), y), leaf(1_000, 5_000), LABELS)
case("cross-entropy-by-row", lambda x, y: F.cross_entropy(x, y, reduction="none"), LOGITS, LABELS)
case("cross-entropy-smoothed", lambda x, y: F.cross_entropy(x, y, label_smoothing=0.1), LOGITS, LABELS)
case("kl", lambda x, y: F.kl_div(F.log_softmax(x, -1), F.softmax(y, -1), reduction="sum"), LOGITS, OTHERS)
for loss in (F.mse_loss, F.smooth_l1_loss, F.huber_loss, F.l1_loss):
    case(loss.__name__.replace("_", "-"), lambda x, y, loss=loss: loss(x * 1, y), LOGITS, OTHERS)
case("mse-loss-by-element", lambda x, y: F.mse_loss(x, y, reduction="none"), LOGITS, OTHERS)

# -- indexing --------------------------------------------------------------------------------------

TABLE, PICKS = leaf(2_000, 300), ids(500)
case("index", lambda x, i: x[i], TABLE, PICKS)
case("index-with-two", lambda x, i: x[i, i], TABLE, PICKS)
case("index-columns", lambda x, i: x[:, i], TABLE, PICKS)
case("index-many", lambda x, i: x[i], TABLE, ids(5_000))
case("index-without-gradient", lambda x, i: x[i], data(2_000, 300), PICKS)
case("index-select", lambda x, i: x.index_select(0, i), TABLE, PICKS)
case("gather", lambda x, i: x.gather(0, i[:, None].expand(500, 300)), TABLE, PICKS)
case("scatter-add", lambda x, i: torch.zeros_like(x).scatter_add(0, i[:, None].expand(500, 300), x[:500]),
     TABLE, PICKS)  # fmt: skip
case("index-add", lambda x, i: torch.zeros_like(x).index_add(0, i, x[:500]), TABLE, PICKS)
case("index-put", lambda x, i: torch.zeros_like(x).index_put((i,), x[:500]), TABLE, PICKS)
case("largest-by-row", lambda x: x.max(-1)[0], TABLE)
case("roll", lambda x: x.roll(-1, 0), TABLE)
SIZES = ((1_000, 32_000, 512), (3_073, 32_000, 512), (40_000, 32_000, 512), (8_192, 1_000, 100))
for count, num_rows, width in SIZES:
    case(f"embedding-{count}", lambda i, w: F.embedding(i, w), ids(count), leaf(num_rows, width))

# -- optimizers ------------------------------------------------------------------------------------

ADAMW, SGD = torch.optim.AdamW, torch.optim.SGD
OPTIMIZERS: dict[str, Callable[[list[Tensor]], torch.optim.Optimizer]] = {
    "adamw": lambda p: ADAMW(p, 1e-4),
    "adamw-fused": lambda p: ADAMW(p, 1e-4, fused=True),
    "adamw-one-by-one": lambda p: ADAMW(p, 1e-4, foreach=False),
    "adamw-amsgrad": lambda p: ADAMW(p, 1e-4, amsgrad=True),
    "sgd": lambda p: SGD(p, 1e-4),
    "sgd-momentum": lambda p: SGD(p, 1e-4, momentum=0.9, weight_decay=0.1),
    "adafactor": lambda p: torch.optim.Adafactor(p, 1e-4),
}


def updates(optimizer: str, clips: bool) -> Callable[..., None]:
    """Make two updates of whatever parameters are given."""

    def run(*parameters: Tensor) -> None:
        steps = OPTIMIZERS[optimizer](list(parameters))
        for _ in range(2):
            for parameter in parameters:
                parameter.grad = torch.empty_like(parameter)
            if clips:
                torch.nn.utils.clip_grad_norm_(parameters, 1.0)
            steps.step()
            steps.zero_grad()

    return run


for optimizer in OPTIMIZERS:
    for dtype in (BF16, FP32):
        parameters = [*(leaf(700, 900, dtype=dtype) for _ in range(6)), leaf(33, dtype=dtype)]
        case(f"{optimizer}-{name_of(dtype)}", updates(optimizer, clips=dtype == BF16), *parameters)
