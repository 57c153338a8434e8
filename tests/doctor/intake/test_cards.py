import dataclasses

import pytest

from dflash_doctor.errors import DoctorError
from dflash_doctor.intake.cards import (
    card_from_flags,
    card_named,
    card_names,
    identity_of,
    kind_of,
    with_memory,
)
from dflash_doctor.intake.presets import card_table
from dflash_doctor.units import format_bytes


@pytest.mark.parametrize("name", card_names())
def test_every_card_is_complete(name: str) -> None:
    card = card_named(name)
    assert card.memory_bytes == card.usable_bytes > 2**33
    assert card.num_multiprocessors > 0
    assert card.source.startswith("card table: ")
    for band in (card.context, card.nccl_per_peer):
        assert 0 < band.low <= band.likely <= band.high
        assert band.basis


def test_the_founding_card_has_what_its_messages_say() -> None:
    card = card_named("rtx-pro-6000")
    assert format_bytes(card.memory_bytes) == "94.97 GiB"
    assert (card.compute_capability, card.num_multiprocessors) == ((12, 0), 188)


@pytest.mark.parametrize(
    ("device", "kind"),
    [
        ("NVIDIA RTX PRO 6000 Blackwell Server Edition", "rtx-pro-6000"),
        ("NVIDIA H100 80GB HBM3", "h100"),
        ("NVIDIA H100 NVL", "h100-nvl"),
        ("NVIDIA H100 PCIe", None),
        ("NVIDIA H200", "h200"),
        ("NVIDIA GH200 480GB", "gh200"),
        ("NVIDIA B200", "b200"),
        ("NVIDIA GB200", None),
        ("NVIDIA A100-SXM4-40GB", "a100-40"),
        ("NVIDIA A100 80GB PCIe", "a100-80"),
        ("NVIDIA L4", "l4"),
        ("NVIDIA L40S", "l40s"),
        ("NVIDIA GeForce RTX 4090", "rtx-4090"),
        ("NVIDIA GeForce RTX 4090 Laptop GPU", None),
        ("Tesla V100-SXM2-32GB", "v100-32"),
        ("Tesla T4", "t4"),
        ("b200", "b200"),
    ],
)
def test_names_of_the_driver_are_matched(device: str, kind: str | None) -> None:
    assert kind_of(device) == kind


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("a100", "did you mean a100-40 or a100-80?"),
        ("h20", "did you mean 'h200'?"),
        ("mi300x", "has no 'mi300x'"),
    ],
)
def test_an_unknown_card_lists_the_nearest(name: str, meant: str) -> None:
    with pytest.raises(DoctorError) as caught:
        card_named(name)
    assert caught.value.message.startswith("--gpu: ")
    assert meant in caught.value.message


def test_names_are_read_in_any_case() -> None:
    assert card_named("NVIDIA H100") == card_named("h100")


def test_without_a_name_the_founding_cards_are_assumed_aloud() -> None:
    choice = card_from_flags(gpu=None, gpu_memory=None, count=8)
    assert len(choice.cards) == 8
    assert choice.notes == ("8 x 94.97 GiB (rtx-pro-6000) assumed",)


def test_memory_alone_is_taken_for_the_nearest_card_aloud() -> None:
    choice = card_from_flags(gpu=None, gpu_memory="94.97GiB", count=2)
    assert choice.cards == (card_named("rtx-pro-6000"),) * 2
    assert choice.notes == (
        "GPUs of 94.97 GiB are taken for rtx-pro-6000, the nearest known; --gpu names another",
    )


def test_memory_goes_over_a_named_card() -> None:
    (card,) = card_from_flags(gpu="h100", gpu_memory="60GiB", count=1).cards
    assert (card.name, card.memory_bytes, card.usable_bytes) == ("h100", 60 * 2**30, 60 * 2**30)


def test_a_card_is_the_same_however_it_was_found() -> None:
    table = card_named("h100")
    found = dataclasses.replace(table, name="NVIDIA H100 80GB HBM3", memory_bytes=table.memory_bytes + 2**26)
    assert identity_of(found) == identity_of(table)
    assert identity_of(with_memory(table, 60 * 2**30)) == ("h100", 60 * 2**30)


def test_every_band_is_used() -> None:
    used = {(key, entry[key]) for entry in card_table()["cards"].values() for key in ("context", "nccl")}
    assert used == {(key, name) for key in ("context", "nccl") for name in card_table()[key]}
