"""Hold single kernels and small graphs to the peaks that PyTorch's own allocator saw, to the byte."""

import json
from pathlib import Path

import pytest

from dflash_doctor.analyze.replay import replay
from dflash_doctor.engines.meta.device import Device
from dflash_doctor.engines.meta.recorder import Recorder
from dflash_doctor.engines.meta.session import meta_session
from tests.doctor.engines.meta.cases import all_cases

TRUTH: dict[str, dict[str, list[int]]] = json.loads(
    (Path(__file__).parents[3] / "truth" / "kernels.json").read_text()
)
DEVICES = {
    "8.0": Device(compute_capability=(8, 0), num_multiprocessors=108),
    "9.0": Device(compute_capability=(9, 0), num_multiprocessors=132),
    "12.0": Device(compute_capability=(12, 0), num_multiprocessors=188),
}
CASES = all_cases()


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("name", CASES)
def test_a_step_peaks_where_it_does_on_cuda(name: str, device: str) -> None:
    case, recorder = CASES[name], Recorder()
    with meta_session(recorder, DEVICES[device]):
        tensors = case.make("meta")
        recorder.set_phase("forward")
        kept = case.run(tensors)
    trace = recorder.finish(role="case", steady=None, vocab_size=None, seconds=0.0)
    played = replay(trace)
    assert [played.peak_allocated_bytes, played.peak_reserved_bytes] == TRUTH[device][name]
    assert trace.untraced_ops == ()
    del kept


def test_every_case_was_measured_on_every_device() -> None:
    assert {device: set(peaks) for device, peaks in TRUTH.items()} == {
        device: set(CASES) for device in DEVICES
    }
