"""Reproduce peaks of `max_memory_allocated` that Liger-Kernel published for real A100s.

Source: benchmark/scripts and benchmark/data of linkedin/Liger-Kernel, the rows of plain PyTorch
(`huggingface`), in MiB to two decimals. Each benchmark repeats its step and reports the median.
"""

from collections.abc import Callable

import pytest
import torch
from torch.nn import functional as F

from dflash_doctor.analyze.replay import replay
from tests.doctor.engines.tracing import A100, MIB, Step, linear, trace_step


def peak_mib(build: Callable[[], Step]) -> str:
    played = replay(trace_step(build, times=3, device=A100))
    return f"{played.peak_allocated_bytes / MIB:.2f}"


@pytest.mark.parametrize(
    ("tokens", "published"), [(4096, "6092.28"), (8192, "9162.31"), (16384, "15302.38"), (32768, "27582.50")]
)
def test_lm_head_and_cross_entropy(tokens: int, published: str) -> None:
    """The benchmark holds a second matrix of the head's size, that of the kernel it compares with."""

    def build() -> Step:
        head, other = linear(4096, 128_256), linear(4096, 128_256)
        rows = torch.empty(tokens, 4096, dtype=torch.bfloat16, requires_grad=True)
        labels = torch.empty(tokens, dtype=torch.long)

        def step(kept: object = other) -> None:
            F.cross_entropy(head(rows), labels).backward()

        return step

    assert peak_mib(build) == published


@pytest.mark.parametrize(
    ("vocabulary", "published"),
    [
        (4096, "1280.13"),
        (8192, "2560.13"),
        (16384, "5120.13"),
        (32768, "10240.13"),
        (65536, "20480.13"),
        (131072, "40960.13"),
    ],
)
def test_cross_entropy_alone(vocabulary: int, published: str) -> None:
    def build() -> Step:
        logits = torch.empty(8 * 2048, vocabulary, requires_grad=True)
        labels = torch.empty(8 * 2048, dtype=torch.long)
        return lambda: F.cross_entropy(logits, labels).backward()

    assert peak_mib(build) == published


@pytest.mark.parametrize(
    ("length", "published"), [(1024, "1294.25"), (2048, "1992.25"), (4096, "3452.25"), (8192, "6372.25")]
)
def test_swiglu_mlp(length: int, published: str) -> None:
    """The benchmark keeps the graph (`retain_graph=True`), so that backward frees nothing saved."""

    def build() -> Step:
        gate, up, down = linear(4096, 11_008), linear(4096, 11_008), linear(11_008, 4096)
        rows = torch.empty(4, length, 4096, dtype=torch.bfloat16, requires_grad=True)

        def step() -> None:
            out = down(F.silu(gate(rows)) * up(rows))
            out.backward(torch.randn_like(out), retain_graph=True)

        return step

    assert peak_mib(build) == published
