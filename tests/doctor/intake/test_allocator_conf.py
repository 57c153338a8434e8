import pytest

from dflash_doctor.intake.allocator_conf import allocator_notes, check_allocator


@pytest.mark.parametrize(
    "text",
    [
        "",
        "expandable_segments:True",
        "expandable_segments:True, max_split_size_mb:128",
        "roundup_power2_divisions:[64:8,256:4,>:1],garbage_collection_threshold:0.8",
        "backend:native,roundup_power2_divisions:4,pinned_use_background_threads:True",
    ],
)
def test_what_pytorch_takes_is_taken(text: str) -> None:
    assert check_allocator(text) is None


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("max_split_size_mb", "'max_split_size_mb' is not of the form key:value"),
        ("max_split_size_mb:", "'max_split_size_mb:' is not of the form key:value"),
        ("a,,b", "'a,,b' is not of the form key:value"),
        ("max_split_mb:1", "'max_split_mb' is no option of PyTorch's allocator; did you mean"),
        ("max_split_size_mb:many", "max_split_size_mb is a whole number, not many"),
        ("max_split_size_mb:3", "max_split_size_mb is at least 20, not 3"),
        ("garbage_collection_threshold:2", "garbage_collection_threshold is a number between 0 and 1, not 2"),
        ("release_lock_on_cudamalloc:yes", "release_lock_on_cudamalloc is True or False, not yes"),
        ("roundup_power2_divisions:[64:3]", "roundup_power2_divisions is a list such as"),
        ("backend:cudaMallocAsync", "backend:cudaMallocAsync is not modelled"),
        ("per_process_memory_fraction:0.5", "per_process_memory_fraction:0.5 is not modelled"),
        ("expandable_segments:True,expandable_segments:False", "expandable_segments is there twice"),
    ],
)
def test_what_pytorch_refuses_or_nobody_models_is_refused(text: str, message: str) -> None:
    assert str(check_allocator(text)).startswith(message)


def test_settings_that_are_not_modelled_are_told() -> None:
    text = "expandable_segments:True,max_split_size_mb:128"
    assert allocator_notes(text, {}) == ("allocator setting max_split_size_mb is not modelled",)


def test_another_setting_of_the_environment_is_told() -> None:
    here = {"PYTORCH_ALLOC_CONF": "max_split_size_mb:64"}
    assert allocator_notes("expandable_segments:True", here) == (
        "PYTORCH_ALLOC_CONF is 'max_split_size_mb:64' here; "
        "the forecast is for 'expandable_segments:True' (--allocator)",
    )
    assert (
        allocator_notes("expandable_segments:True", {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"})
        == ()
    )
