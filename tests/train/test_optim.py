import pytest
import torch
from torch import nn

from dflash_train.optim import MasterAdamW
from tests.train.tiny import LivePeak

LR = 1e-2


def parameters(dtype: torch.dtype) -> dict[str, nn.Parameter]:
    generator = torch.Generator().manual_seed(0)
    return {
        name: nn.Parameter(torch.randn(*shape, generator=generator).to(dtype))
        for name, shape in {"matrix": (6, 5), "norm": (7,)}.items()
    }


def set_gradients(weights: dict[str, nn.Parameter], step: int, size: float = 1.0) -> None:
    generator = torch.Generator().manual_seed(100 + step)
    for weight in weights.values():
        weight.grad = (size * torch.randn(weight.shape, generator=generator)).to(weight.dtype)


@pytest.mark.parametrize("clip_norm", [1.0, None])
@pytest.mark.parametrize("slice_elements", [4, 1000])
def test_float32_weights_step_as_torch_does(clip_norm, slice_elements):
    own, theirs = parameters(torch.float32), parameters(torch.float32)
    optimizer = MasterAdamW(own.items(), weight_decay=0.1, clip_norm=clip_norm, slice_elements=slice_elements)
    reference = torch.optim.AdamW(theirs.values(), lr=LR, weight_decay=0.1, fused=True)
    assert not optimizer.masters
    for step in range(4):
        set_gradients(own, step)
        set_gradients(theirs, step)
        expected = nn.utils.clip_grad_norm_(theirs.values(), clip_norm or float("inf"))
        reference.param_groups[0]["lr"] = LR / (step + 1)
        reference.step()
        torch.testing.assert_close(optimizer.step(LR / (step + 1)), expected)
        for name, weight in own.items():
            torch.testing.assert_close(weight, theirs[name], atol=1e-6, rtol=1e-6)
            assert weight.grad is None


def test_bfloat16_weights_follow_float32_masters():
    own = parameters(torch.bfloat16)
    masters = {name: nn.Parameter(weight.detach().float()) for name, weight in own.items()}
    optimizer = MasterAdamW(own.items(), weight_decay=0.1, slice_elements=8)
    reference = torch.optim.AdamW(masters.values(), lr=LR, weight_decay=0.1, fused=True)
    for step in range(4):
        set_gradients(own, step)
        for name, weight in own.items():
            assert weight.grad is not None
            masters[name].grad = weight.grad.float()
        nn.utils.clip_grad_norm_(masters.values(), 1.0)
        reference.step()
        optimizer.step(LR)
        for name, weight in own.items():
            torch.testing.assert_close(optimizer.masters[name], masters[name].detach())
            assert torch.equal(weight.detach(), optimizer.masters[name].bfloat16())


def test_small_gradients_are_not_scaled_up():
    own = parameters(torch.float32)
    optimizer = MasterAdamW(own.items())
    set_gradients(own, 0, size=1e-3)
    assert float(optimizer.step(LR)) < 0.01
    moment = optimizer.exp_avgs["norm"]
    set_gradients(own, 0, size=1e-3)
    assert own["norm"].grad is not None
    torch.testing.assert_close(moment, 0.1 * own["norm"].grad)


def test_state_takes_sixteen_bytes_a_parameter_and_a_step_one_slice():
    weight = nn.Parameter(torch.zeros(1 << 16, dtype=torch.bfloat16))
    optimizer = MasterAdamW([("weight", weight)], slice_elements=1 << 10)
    weight.grad = torch.ones_like(weight)
    assert weight.nbytes + weight.grad.nbytes + optimizer.state_bytes == 16 << 16
    with LivePeak(weight, weight.grad, *optimizer.state_tensors(), optimizer.num_steps) as peak:
        optimizer.step(LR)
    assert peak.peak <= 4 * (1 << 10) + 64


def test_state_returns_bit_for_bit():
    own, other = parameters(torch.bfloat16), parameters(torch.bfloat16)
    optimizer, restored = MasterAdamW(own.items()), MasterAdamW(other.items())
    for step in range(2):
        set_gradients(own, step)
        optimizer.step(LR)
    restored.load_state_dict(optimizer.state_dict())
    for step in range(2, 4):
        for weights, stepper in ((own, optimizer), (other, restored)):
            set_gradients(weights, step)
            stepper.step(LR)
    for name, weight in own.items():
        assert torch.equal(weight, other[name])
        assert torch.equal(optimizer.masters[name], restored.masters[name])
    assert int(restored.num_steps) == 4


def test_foreign_state_is_refused_unread():
    optimizer = MasterAdamW(parameters(torch.bfloat16).items())
    state = optimizer.state_dict()
    state["exp_avgs"] = {"matrix": state["exp_avgs"]["matrix"]}
    with pytest.raises(ValueError, match="exp_avgs of norm"):
        optimizer.load_state_dict(state)
    state = optimizer.state_dict()
    state["masters"] = {**state["masters"], "norm": torch.zeros(8)}
    with pytest.raises(ValueError, match="shape of norm"):
        optimizer.load_state_dict(state)


def test_missing_gradients_are_named():
    own = parameters(torch.bfloat16)
    with pytest.raises(ValueError, match="2 parameters have no gradient, first matrix"):
        MasterAdamW(own.items()).step(LR)
    with pytest.raises(ValueError, match="no parameter"):
        MasterAdamW([])


def test_steps_on_meta():
    weight = nn.Parameter(torch.empty(64, 8, dtype=torch.bfloat16, device="meta"))
    optimizer = MasterAdamW([("weight", weight)], slice_elements=100)
    weight.grad = torch.empty_like(weight)
    assert optimizer.step(LR).device.type == "meta"
