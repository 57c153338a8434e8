"""Update bfloat16 weights by AdamW on float32 master weights, at 16 bytes a parameter.

    bfloat16 weight 2, bfloat16 gradient 2, float32 master 4, first moment 4, second moment 4

The step goes over parameters in slices: only one slice's gradient is ever held in float32. Weights that are
float32 already are their own masters. All state exists from construction on.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Protocol

import torch
from torch import Tensor, nn

SLICE_ELEMENTS = 16 * 2**20
"""Elements whose gradient is held in float32 at a time: 64 MiB."""


class StepOptimizer(Protocol):
    """What a draft step asks of its optimizer."""

    def step(self, lr: float) -> Tensor:
        """Clip, update all weights and release the gradients; return the gradients' norm."""
        ...


class MasterAdamW:
    """Hold master weights and moments, and step with PyTorch's fused AdamW."""

    def __init__(
        self,
        named_parameters: Iterable[tuple[str, nn.Parameter]],
        *,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        clip_norm: float | None = 1.0,
        slice_elements: int = SLICE_ELEMENTS,
    ) -> None:
        """Allocate state for all parameters that require gradients; clip_norm None does not clip."""
        self.parameters = {name: p for name, p in named_parameters if p.requires_grad}
        if not self.parameters:
            raise ValueError("no parameter requires a gradient")
        self.betas, self.eps, self.weight_decay = betas, eps, weight_decay
        self.clip_norm, self.slice_elements = clip_norm, slice_elements
        device = next(iter(self.parameters.values())).device
        self.num_steps = torch.zeros((), dtype=torch.float32, device=device)
        self.masters: dict[str, Tensor] = {}
        self.exp_avgs: dict[str, Tensor] = {}
        self.exp_avg_sqs: dict[str, Tensor] = {}
        for name, parameter in self.parameters.items():
            wide = torch.promote_types(parameter.dtype, torch.float32)
            if not parameter.is_contiguous():
                raise ValueError(f"parameter {name} is not contiguous")
            if parameter.dtype != wide:
                self.masters[name] = parameter.detach().to(wide)
            self.exp_avgs[name] = torch.zeros_like(parameter, dtype=wide, requires_grad=False)
            self.exp_avg_sqs[name] = torch.zeros_like(parameter, dtype=wide, requires_grad=False)

    @property
    def state_bytes(self) -> int:
        """Count the bytes of master weights and moments."""
        return sum(tensor.nbytes for tensor in self.state_tensors())

    def state_tensors(self) -> Iterator[Tensor]:
        """Yield every tensor of the state except the step count."""
        for kind in (self.masters, self.exp_avgs, self.exp_avg_sqs):
            yield from kind.values()

    @torch.no_grad()
    def step(self, lr: float) -> Tensor:
        """Clip, update all weights and release the gradients; return the gradients' norm before clipping.

        Nothing is read back from the device. Raises ValueError where a parameter has no gradient.
        """
        missing = [name for name, p in self.parameters.items() if p.grad is None]
        if missing:
            raise ValueError(f"{len(missing)} parameters have no gradient, first {missing[0]}")
        norm = self.grad_norm()
        scale = None if self.clip_norm is None else (self.clip_norm / (norm + 1e-6)).clamp(max=1.0)
        self.num_steps.add_(1)
        for name, parameter in self.parameters.items():
            for start in range(0, parameter.numel(), self.slice_elements):
                self._update(name, slice(start, start + self.slice_elements), scale, lr)
            parameter.grad = None
        return norm

    @torch.no_grad()
    def grad_norm(self) -> Tensor:
        """Return the global norm of the gradients as they are, accumulated in float32; a scalar."""
        norms = [
            torch.linalg.vector_norm(p.grad, dtype=torch.promote_types(p.grad.dtype, torch.float32))
            for p in self.parameters.values()
            if p.grad is not None
        ]
        norm: Tensor = torch.linalg.vector_norm(torch.stack(norms))
        return norm

    def _update(self, name: str, part: slice, scale: Tensor | None, lr: float) -> None:
        parameter = self.parameters[name]
        assert parameter.grad is not None
        weight = parameter.view(-1)[part]
        master = self.masters[name].view(-1)[part] if name in self.masters else weight
        grad = parameter.grad.view(-1)[part].to(master.dtype)
        if scale is not None:
            grad.mul_(scale)
        torch._fused_adamw_(
            [master],
            [grad],
            [self.exp_avgs[name].view(-1)[part]],
            [self.exp_avg_sqs[name].view(-1)[part]],
            [],
            [self.num_steps],
            lr=lr,
            beta1=self.betas[0],
            beta2=self.betas[1],
            weight_decay=self.weight_decay,
            eps=self.eps,
            amsgrad=False,
            maximize=False,
        )
        if master is not weight:
            weight.copy_(master)

    def state_dict(self) -> dict[str, Any]:
        """Return the state by parameter name; tensors are shared, not copied."""
        return {
            "num_steps": self.num_steps,
            "masters": dict(self.masters),
            "exp_avgs": dict(self.exp_avgs),
            "exp_avg_sqs": dict(self.exp_avg_sqs),
        }

    @torch.no_grad()
    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Copy a state in, and the weights from their masters.

        Raises ValueError, before anything is changed, for other names or shapes.
        """
        own = self.state_dict()
        for kind in ("masters", "exp_avgs", "exp_avg_sqs"):
            if state[kind].keys() != own[kind].keys():
                odd = sorted(state[kind].keys() ^ own[kind].keys())
                raise ValueError(f"optimizer state does not match: {kind} of {odd[0]}")
            for name, tensor in own[kind].items():
                if state[kind][name].shape != tensor.shape:
                    raise ValueError(f"optimizer state does not match: shape of {name}")
        self.num_steps.copy_(state["num_steps"])
        for kind in ("masters", "exp_avgs", "exp_avg_sqs"):
            for name, tensor in own[kind].items():
                tensor.copy_(state[kind][name])
        for name, master in self.masters.items():
            self.parameters[name].copy_(master)


class PlainOptimizer:
    """Step float32 masters with PyTorch's own optimizer, every gradient copied to float32 at once.

    Four bytes a parameter more than `MasterAdamW` at its peak. name is "adamw" (foreach on CUDA),
    "adamw-fused" or "sgd".
    """

    def __init__(
        self, parameters: Iterable[nn.Parameter], name: str, *, clip_norm: float | None = None
    ) -> None:
        """Allocate the masters; moments come with the first step."""
        self.parameters = [p for p in parameters if p.requires_grad]
        self.masters = [nn.Parameter(p.detach().float()) for p in self.parameters]
        self.clip_norm = clip_norm
        self.optimizer: torch.optim.Optimizer
        if name == "sgd":
            self.optimizer = torch.optim.SGD(self.masters, lr=0.0)
        else:
            self.optimizer = torch.optim.AdamW(self.masters, lr=0.0, fused=name == "adamw-fused" or None)

    def step(self, lr: float) -> Tensor:
        """Widen the gradients, clip, update the masters, copy them back; return the norm before clipping."""
        for master, parameter in zip(self.masters, self.parameters, strict=True):
            master.grad = None if parameter.grad is None else parameter.grad.float()
            parameter.grad = None
        largest = float("inf") if self.clip_norm is None else self.clip_norm
        norm = nn.utils.clip_grad_norm_(self.masters, largest)
        for group in self.optimizer.param_groups:
            group["lr"] = lr
        self.optimizer.step()
        self.optimizer.zero_grad()
        for master, parameter in zip(self.masters, self.parameters, strict=True):
            parameter.data.copy_(master.data)
        return norm
