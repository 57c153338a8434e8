import pytest
import torch
from transformers.models.qwen3.modeling_qwen3 import Qwen3RMSNorm

from dflash_train.models import norm as norm_module
from dflash_train.models.norm import RMSNorm
from tests.train.tiny import LivePeak


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_forward_is_bit_equal_to_qwen3(dtype, monkeypatch):
    monkeypatch.setattr(norm_module, "CHUNK_ELEMENTS", 40)
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(3, 7, 16, generator=generator).to(dtype)
    ours, theirs = RMSNorm(16, 1e-6, device=None, dtype=dtype), Qwen3RMSNorm(16, 1e-6).to(dtype)
    with torch.no_grad():
        ours.weight.copy_(torch.randn(16, generator=generator))
        theirs.weight.copy_(ours.weight)
    assert torch.equal(ours(x), theirs(x))


def test_gradients_equal_qwen3():
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(9, 16, generator=generator, requires_grad=True)
    ours, theirs = RMSNorm(16, 1e-6, device=None, dtype=None), Qwen3RMSNorm(16, 1e-6)
    upstream = torch.randn(9, 16, generator=generator)
    own = torch.autograd.grad(ours(x), (x, ours.weight), upstream)
    expected = torch.autograd.grad(theirs(x), (x, theirs.weight), upstream)
    for left, right in zip(own, expected, strict=True):
        torch.testing.assert_close(left, right, atol=1e-5, rtol=1e-5)


def test_gradients_in_float64(monkeypatch):
    monkeypatch.setattr(norm_module, "CHUNK_ELEMENTS", 12)
    layer = RMSNorm(6, 1e-6, device=None, dtype=torch.float64)
    x = torch.randn(2, 5, 6, dtype=torch.float64, requires_grad=True)

    def apply(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return torch.func.functional_call(layer, {"weight": weight}, (x,))

    weight = torch.randn(6, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(apply, (x, weight))


def test_input_that_needs_no_gradient_gets_none():
    layer = RMSNorm(8, 1e-6, device=None, dtype=None)
    layer(torch.randn(4, 8)).sum().backward()
    assert layer.weight.grad is not None


def test_no_float32_copy_of_the_whole_is_made(monkeypatch):
    monkeypatch.setattr(norm_module, "CHUNK_ELEMENTS", 1024)
    layer = RMSNorm(64, 1e-6, device=None, dtype=torch.bfloat16)
    x = torch.randn(1024, 64).bfloat16().requires_grad_()
    with LivePeak(x, layer.weight) as peak:
        out = layer(x)
        forward_peak = peak.peak
        out.backward(torch.ones_like(out))
    rows, chunk = 1024 * 4, 1024 * 4
    assert forward_peak <= x.nbytes + rows + 4 * chunk
    assert peak.peak <= 3 * x.nbytes + rows + 6 * chunk
