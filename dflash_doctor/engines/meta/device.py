"""The device whose choices are modelled."""

from dataclasses import dataclass

MIB = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """The device whose choices are modelled; memory is no part of it."""

    compute_capability: tuple[int, int] = (12, 0)
    num_multiprocessors: int = 188

    @property
    def threads_per_multiprocessor(self) -> int:
        """Give how many threads one multiprocessor holds (CUDA programming guide)."""
        if self.compute_capability == (7, 5):
            return 1024
        return 1536 if self.compute_capability in ((8, 6), (8, 9), (12, 0), (12, 1)) else 2048

    @property
    def shared_kib(self) -> int:
        """Give the shared memory that one block may opt in to, in KiB (CUDA programming guide)."""
        if self.compute_capability in ((8, 0), (8, 7)):
            return 163
        if self.compute_capability[0] in (9, 10, 11):
            return 227
        return 99 if self.compute_capability >= (8, 6) else 64

    @property
    def cublas_workspace_bytes(self) -> int:
        """Give cuBLAS's workspace a thread: 32 MiB from Hopper on, 8.125 MiB before.

        Source: aten/src/ATen/cuda/CublasHandlePool.cpp, `parseChosenWorkspaceSize`.
        """
        return 32 * MIB if self.compute_capability >= (9, 0) else 4096 * 1024 * 2 + 16 * 1024 * 8
