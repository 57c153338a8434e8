"""Figures of kinds of device."""

import pytest

from dflash_doctor.engines.meta.device import Device

MIB = 1 << 20


def device(major: int, minor: int) -> Device:
    return Device(compute_capability=(major, minor))


@pytest.mark.parametrize("capability", [(7, 5), (8, 0), (8, 6), (8, 9)])
def test_the_cublas_workspace_was_8_and_an_eighth_mib(capability: tuple[int, int]) -> None:
    assert device(*capability).cublas_workspace_bytes == 8_519_680 == 8.125 * MIB


@pytest.mark.parametrize("capability", [(9, 0), (10, 0), (12, 0)])
def test_the_cublas_workspace_is_32_mib_from_hopper_on(capability: tuple[int, int]) -> None:
    assert device(*capability).cublas_workspace_bytes == 32 * MIB


@pytest.mark.parametrize(
    ("capability", "threads", "shared"),
    [
        ((7, 5), 1024, 64),
        ((8, 0), 2048, 163),
        ((8, 6), 1536, 99),
        ((8, 9), 1536, 99),
        ((9, 0), 2048, 227),
        ((10, 0), 2048, 227),
        ((12, 0), 1536, 99),
    ],
)
def test_threads_and_shared_memory_are_those_of_the_programming_guide(
    capability: tuple[int, int], threads: int, shared: int
) -> None:
    kind = device(*capability)
    assert (kind.threads_per_multiprocessor, kind.shared_kib) == (threads, shared)
