"""The dotted path of the module whose forward runs."""

import pytest
import torch
from torch import Tensor, nn

from tests.doctor.engines.tracing import Step, made_by, trace_step


class Inner(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return torch.sin(x)


class Outer(nn.Module):
    def __init__(self, shared: nn.Module) -> None:
        super().__init__()
        self.layers = nn.ModuleList([Inner(), nn.Sequential(Inner())])
        self.not_a_child = [shared]

    def forward(self, x: Tensor) -> Tensor:
        x = torch.cos(x)
        for layer in self.layers:
            x = layer(x)
        x = self.not_a_child[0](x)
        return torch.exp(x)


def paths(*names: str) -> list[str]:
    def build() -> Step:
        model, x = Outer(Inner()), torch.empty(8)
        return lambda: model(x)

    return [storage.site.module for storage in made_by(trace_step(build), *names)]


def test_children_have_their_dotted_path_and_the_outermost_its_class() -> None:
    assert paths("cos", "exp") == ["Outer", "Outer"]
    assert paths("sin")[:2] == ["layers.0", "layers.1.0"]


def test_a_module_that_is_no_child_is_named_after_its_caller_and_class() -> None:
    assert paths("sin")[2] == "Outer.Inner"


def test_outside_of_any_module_there_is_no_path() -> None:
    assert [s.site.module for s in made_by(trace_step(lambda: lambda: torch.sin(torch.empty(3))), "sin")] == [
        ""
    ]


class Failing(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        raise KeyError("inner")


def test_a_module_that_raises_leaves_its_path() -> None:
    def build() -> Step:
        model, x = nn.Sequential(Failing()), torch.empty(8)

        def step() -> Tensor:
            with pytest.raises(KeyError):
                model(x)
            return torch.sin(x)

        return step

    (sine,) = made_by(trace_step(build), "sin")
    assert sine.site.module == ""
