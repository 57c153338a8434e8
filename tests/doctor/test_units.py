import pytest

from dflash_doctor.errors import DoctorError
from dflash_doctor.units import format_bytes, parse_bytes, parse_count, parse_percent


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("65536", 65_536),
        ("65_536", 65_536),
        ("65,536", 65_536),
        ("64k", 64_000),
        ("64K", 64_000),
        ("64k ", 64_000),
        (" 64Ki", 65_536),
        ("64 Ki", 65_536),
        ("64ki", 65_536),
        ("1.5k", 1_500),
        ("1M", 1_000_000),
        ("1Mi", 1_048_576),
        ("1e3", 1_000),
        (512, 512),
    ],
)
def test_counts_are_read_with_k_as_1000_and_ki_as_1024(text: str | int, count: int) -> None:
    assert parse_count(text, flag="--token-budget") == count


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("0", "--token-budget: 0 is too small; the least is 1"),
        ("-1", "--token-budget: -1 is too small; the least is 1"),
        ("1e12", "--token-budget: 1e12 is 1,000,000,000,000, too large; the most is 2,147,483,647"),
        ("1e300", "--token-budget: 1e300 is 1e+300, too large; the most is 2,147,483,647"),
        ("64q", "--token-budget: '64q' is not a count"),
        ("64kB", "--token-budget: '64kB' is not a count"),
        ("6_", "--token-budget: '6_' is not a count"),
        ("", "--token-budget: '' is not a count"),
        ("1.0005k", "--token-budget: '1.0005k' is 1000.5, not a whole number"),
        ("nan", "--token-budget: 'nan' is not a count"),
    ],
)
def test_a_bad_count_names_the_flag_and_says_how_sizes_are_read(text: str, message: str) -> None:
    with pytest.raises(DoctorError) as caught:
        parse_count(text, flag="--token-budget")
    assert caught.value.message == message
    assert "Ki = 1024" in str(caught.value.hint)
    assert caught.value.exit_code == 2


@pytest.mark.parametrize(
    ("text", "num_bytes"),
    [
        ("94.97GiB", 101_973_261_025),
        ("80GB", 80_000_000_000),
        ("97871MiB", 97_871 * 2**20),
        ("80 GiB", 80 * 2**30),
        (101_973_261_025, 101_973_261_025),
    ],
)
def test_bytes_are_read_in_both_kinds_of_units(text: str | int, num_bytes: int) -> None:
    assert parse_bytes(text, flag="--gpu-memory") == num_bytes


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("80", "--gpu-memory: 80 has no unit; did you mean 80GiB?"),
        ("80G", "--gpu-memory: '80G' is not a size in bytes"),
        ("0GiB", "--gpu-memory: 0GiB is too small; it must be more than zero"),
        ("-4GiB", "--gpu-memory: -4GiB is too small; it must be more than zero"),
        ("2000000TiB", "--gpu-memory: 2000000TiB is more than any device has"),
    ],
)
def test_a_bad_size_names_the_flag(text: str, message: str) -> None:
    with pytest.raises(DoctorError) as caught:
        parse_bytes(text, flag="--gpu-memory")
    assert caught.value.message == message


@pytest.mark.parametrize(
    ("text", "share"), [("4%", 0.04), ("0.04", 0.04), (0.04, 0.04), ("0", 0.0), ("12.5 %", 0.125)]
)
def test_shares_are_read_as_percent_or_fraction(text: str | float, share: float) -> None:
    assert parse_percent(text, flag="--margin") == share


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("4", "--margin: 4 is not below 1; did you mean 4%?"),
        ("100%", "--margin: 100% is not below 1"),
        ("-4%", "--margin: '-4%' is not a share"),
        ("much", "--margin: 'much' is not a share"),
    ],
)
def test_a_bad_share_names_the_flag(text: str, message: str) -> None:
    with pytest.raises(DoctorError) as caught:
        parse_percent(text, flag="--margin")
    assert caught.value.message == message


@pytest.mark.parametrize(
    ("num_bytes", "text"),
    [
        (0, "0 bytes"),
        (1024, "1024 bytes"),
        (1025, "1.00 KiB"),
        (2**20, "1024.00 KiB"),
        (2**30, "1024.00 MiB"),
        (101_973_261_025, "94.97 GiB"),
        (-(3 * 2**30), "-3.00 GiB"),
    ],
)
def test_bytes_are_printed_as_pytorch_prints_them(num_bytes: int, text: str) -> None:
    assert format_bytes(num_bytes) == text
