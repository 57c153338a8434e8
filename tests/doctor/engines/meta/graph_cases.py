"""Cases of small graphs: what autograd keeps, adds up in place and frees."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from tests.doctor.engines.meta.cases import BF16, FP16, FP32, INT64, Case, data, leaf

SIZE, ROWS = 512, 2_048
Graph = Callable[[Tensor, Tensor, Tensor], Any]
CASES: dict[str, Case] = {}


def graph(function: Graph) -> Graph:
    """Enter a graph of rows [2048, 512] and two weights [512, 512]."""
    CASES["graph-" + function.__name__.replace("_", "-")] = Case(
        function, (data(ROWS, SIZE), leaf(SIZE, SIZE), leaf(SIZE, SIZE))
    )
    return function


def backward(out: Tensor) -> None:
    out.backward(torch.empty_like(out))


@graph
def gradients_of_three_batches(x: Tensor, a: Tensor, b: Tensor) -> None:
    for _ in range(3):
        backward(F.relu(x @ a) @ b)


@graph
def weight_used_three_times(x: Tensor, a: Tensor, b: Tensor) -> Tensor:
    return F.relu(F.relu(x @ a) @ a) @ a


@graph
def weight_and_its_transpose(x: Tensor, a: Tensor, b: Tensor) -> Tensor:
    return F.relu(x @ a) @ a.t()


@graph
def residuals(x: Tensor, a: Tensor, b: Tensor) -> Tensor:
    h = x @ a
    for _ in range(3):
        h = h + F.silu(h @ b)
    return h


@graph
def one_tensor_in_three_places(x: Tensor, a: Tensor, b: Tensor) -> Tensor:
    h = x @ a
    return F.relu(h) + F.silu(h) + h * h


@graph
def in_place(x: Tensor, a: Tensor, b: Tensor) -> Tensor:
    h = F.relu(x @ a, inplace=True) @ b
    h.mul_(2)
    h += x
    return h


@graph
def views(x: Tensor, a: Tensor, b: Tensor) -> Tensor:
    return (x @ a).view(2, 1_024, 8, 64).transpose(1, 2).reshape(2, 8, -1).flatten(1)


@graph
def chunks(x: Tensor, a: Tensor, b: Tensor) -> Tensor:
    gate, up = (x @ a).chunk(2, -1)
    return F.silu(gate) * up


@graph
def overlapping_slices(x: Tensor, a: Tensor, b: Tensor) -> Tensor:
    h = x @ a
    return h[:, :128] * h[:, 64:192] + h[:, 256:384]


@graph
def unbound(x: Tensor, a: Tensor, b: Tensor) -> Tensor:
    key, value = (x @ a).view(ROWS, 2, 256).unbind(1)
    return key * value


@graph
def concatenated(x: Tensor, a: Tensor, b: Tensor) -> Tensor:
    return torch.cat([x @ a, x @ b], -1)


@graph
def expanded(x: Tensor, a: Tensor, b: Tensor) -> Tensor:
    return (x @ a)[:, :1].expand(ROWS, SIZE) * (x @ b)


@graph
def checkpointed(x: Tensor, a: Tensor, b: Tensor) -> Tensor:
    return checkpoint(lambda y: F.silu(F.silu(y @ a) @ b), x @ a, use_reentrant=False)  # type: ignore[no-any-return]


@graph
def checkpointed_reentrantly(x: Tensor, a: Tensor, b: Tensor) -> Tensor:
    return checkpoint(lambda y: F.silu(F.silu(y @ a) @ b), x @ a, use_reentrant=True)  # type: ignore[no-any-return]


@graph
def gradients_by_function(x: Tensor, a: Tensor, b: Tensor) -> tuple[Tensor, ...]:
    out = F.relu(x @ a) @ b
    return torch.autograd.grad(out, [a, b], torch.empty_like(out))


@graph
def graph_kept_for_a_second_pass(x: Tensor, a: Tensor, b: Tensor) -> None:
    out = F.relu(x @ a) @ b
    gradient = torch.empty_like(out)
    out.backward(gradient, retain_graph=True)
    out.backward(gradient)


@graph
def float32_loss(x: Tensor, a: Tensor, b: Tensor) -> Tensor:
    return (x @ a).float().pow(2).mean()


@graph
def attention_by_hand(x: Tensor, a: Tensor, b: Tensor) -> Tensor:
    return F.softmax((x @ a) @ (x @ b).t(), -1, dtype=FP32).to(BF16) @ x


@graph
def where(x: Tensor, a: Tensor, b: Tensor) -> Tensor:
    return torch.where((x @ a) > 0, x @ a, x @ b)


@graph
def detached(x: Tensor, a: Tensor, b: Tensor) -> Tensor:
    return (x @ a) * (x @ b).detach()


@graph
def gradients_dropped_by_hooks(x: Tensor, a: Tensor, b: Tensor) -> None:
    def drop(parameter: Tensor) -> None:
        parameter.grad = None

    hooks = [weight.register_post_accumulate_grad_hook(drop) for weight in (a, b)]
    backward(F.relu(x @ a) @ b)
    for hook in hooks:
        hook.remove()


@graph
def written_into_slices(x: Tensor, a: Tensor, b: Tensor) -> Tensor:
    slot = torch.zeros(ROWS, 2 * SIZE, dtype=BF16, device=x.device)
    slot[:, :SIZE] = x @ a
    return slot


@graph
def bias_of_rows(x: Tensor, a: Tensor, b: Tensor) -> Tensor:
    return (x @ a) * b[0] + b[1]


@graph
def scaled_by_row_means(x: Tensor, a: Tensor, b: Tensor) -> Tensor:
    return (x @ a) * (x @ b).mean(-1, keepdim=True)


@graph
def dropped_out_residual(x: Tensor, a: Tensor, b: Tensor) -> Tensor:
    return x @ a + F.dropout(x @ b, 0.1)


@graph
def einsum(x: Tensor, a: Tensor, b: Tensor) -> Tensor:
    return torch.einsum("bqhd,bkhd->bhqk", (x @ a).view(8, 256, 8, 64), (x @ b).view(8, 256, 8, 64))


class Square(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        x: Tensor = ctx.saved_tensors[0]
        return 2 * x * grads[0]


@graph
def function_of_ones_own(x: Tensor, a: Tensor, b: Tensor) -> Tensor:
    squared: Tensor = Square.apply(x @ a)  # type: ignore[no-untyped-call]
    return squared @ b


# -- inference mode shows composite ops whole ------------------------------------------------------

Inference = Callable[[Tensor, Tensor], Any]


def inference(function: Inference) -> Inference:
    """Enter a pass of rows [2000, 512] and one weight [512, 512] in inference mode, in float16."""
    CASES["inference-" + function.__name__.replace("_", "-")] = Case(
        torch.inference_mode()(function), (data(2_000, SIZE, dtype=FP16), data(SIZE, SIZE, dtype=FP16))
    )
    return function


@inference
def block(x: Tensor, w: Tensor) -> Tensor:
    hidden = F.layer_norm(F.linear(x.view(4, 500, SIZE), w), (SIZE,))
    return F.linear(hidden.reshape(-1, SIZE), w, w[0])


@inference
def attention(x: Tensor, w: Tensor) -> Tensor:
    heads = (x @ w).view(4, 500, 8, 64).transpose(1, 2)
    return F.scaled_dot_product_attention(heads, heads, heads, is_causal=True).transpose(1, 2).flatten(2)


@inference
def softmax_to_float32(x: Tensor, w: Tensor) -> Tensor:
    return F.softmax(x @ w, -1, dtype=FP32).to(FP16)


@inference
def cross_entropy(x: Tensor, w: Tensor) -> Tensor:
    labels = torch.zeros(2_000, dtype=INT64, device=x.device)
    return F.cross_entropy((x @ w).float(), labels)
