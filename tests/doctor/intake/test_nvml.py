from types import SimpleNamespace
from typing import Any

import pytest

from dflash_doctor.intake.nvml import gpus_from_nvml

GIB = 2**30


class FakeDriver:
    """Answer like pynvml for GPUs of one kind."""

    def __init__(self, count: int = 2, name: str = "NVIDIA H100 80GB HBM3", *, old: bool = False) -> None:
        self.count = count
        self.name = name
        self.old = old

    def nvmlInit(self) -> None: ...

    def nvmlShutdown(self) -> None: ...

    def nvmlDeviceGetCount(self) -> int:
        return self.count

    def nvmlDeviceGetHandleByIndex(self, index: int) -> int:
        return index

    def nvmlDeviceGetUUID(self, handle: int) -> str:
        return f"GPU-{handle}abc"

    def nvmlDeviceGetName(self, handle: int) -> str:
        return self.name

    def nvmlDeviceGetCudaComputeCapability(self, handle: int) -> tuple[int, int]:
        return (9, 0)

    def nvmlDeviceGetMemoryInfo(self, handle: int, version: int | None = None) -> Any:
        if self.old and version is not None:
            raise RuntimeError("function not found")
        return SimpleNamespace(total=80 * GIB, reserved=GIB, free=70 * GIB - handle, used=9 * GIB)

    def nvmlDeviceGetComputeRunningProcesses(self, handle: int) -> list[Any]:
        return [
            SimpleNamespace(pid=4242, usedGpuMemory=9 * GIB),
            SimpleNamespace(pid=4343, usedGpuMemory=None),
        ]

    def nvmlDeviceGetGraphicsRunningProcesses(self, handle: int) -> list[Any]:
        return [SimpleNamespace(pid=4242, usedGpuMemory=9 * GIB)]

    def nvmlSystemGetProcessName(self, pid: int) -> str:
        if pid == 4343:
            raise RuntimeError("no permission")
        return "/usr/bin/vllm\x1b[31m serve"

    def nvmlDeviceGetNumGpuCores(self, handle: int) -> int:
        return 114 * 128


def test_gpus_have_the_memory_that_cuda_sees_and_name_other_processes() -> None:
    found = gpus_from_nvml(FakeDriver(), environ={})
    assert found.reason is None
    first, second = found.cards
    assert (first.name, first.memory_bytes, first.usable_bytes) == (
        "NVIDIA H100 80GB HBM3",
        79 * GIB,
        70 * GIB,
    )
    assert second.usable_bytes == 70 * GIB - 1
    assert (first.compute_capability, first.num_multiprocessors) == ((9, 0), 132)
    assert first.other_processes == (
        "vllm[31m (pid 4242) holds 9.00 GiB",
        "a process (pid 4343) holds an unknown size",
    )


def test_a_card_that_the_table_lacks_asks_for_its_multiprocessors() -> None:
    (card,) = gpus_from_nvml(FakeDriver(1, "NVIDIA H100 PCIe"), environ={}).cards
    assert card.num_multiprocessors == 114


def test_older_drivers_know_total_and_free_only() -> None:
    (card,) = gpus_from_nvml(FakeDriver(1, old=True), environ={}).cards
    assert (card.memory_bytes, card.usable_bytes) == (80 * GIB, 70 * GIB)


@pytest.mark.parametrize(
    ("visible", "free"), [("1,0", [1, 0]), ("GPU-1", [1]), ("0,9,1", [0]), ("", []), ("-1", [])]
)
def test_visible_devices_are_obeyed(visible: str, free: list[int]) -> None:
    found = gpus_from_nvml(FakeDriver(), environ={"CUDA_VISIBLE_DEVICES": visible})
    assert [70 * GIB - card.usable_bytes for card in found.cards] == free
    assert found.reason == (None if free else "no GPU is visible")


def test_a_machine_without_a_driver_gives_its_reason() -> None:
    class NoDriver(FakeDriver):
        def nvmlInit(self) -> None:
            raise RuntimeError("NVML Shared Library Not Found")

    found = gpus_from_nvml(NoDriver(), environ={})
    assert found.cards == ()
    assert found.reason == "no NVIDIA driver answers (NVML Shared Library Not Found)"


def test_a_driver_that_half_works_counts_as_none() -> None:
    class Broken(FakeDriver):
        def nvmlDeviceGetName(self, handle: int) -> str:
            raise RuntimeError("GPU is lost")

    assert (
        gpus_from_nvml(Broken(), environ={}).reason == "the NVIDIA driver cannot list its GPUs (GPU is lost)"
    )
