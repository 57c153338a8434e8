from pathlib import Path

import pytest

from dflash_doctor.errors import DoctorError
from dflash_doctor.intake import plan_keys
from dflash_doctor.intake.plan_file import read_plan_file

SMALL = '[model]\npreset = "qwen3-0.6b"\n'


def _write(folder: Path, text: str) -> Path:
    path = folder / "run.toml"
    path.write_text(text, encoding="utf-8")
    return path


def _refused(folder: Path, text: str) -> DoctorError:
    with pytest.raises(DoctorError) as caught:
        read_plan_file(_write(folder, text))
    return caught.value


def test_every_table_of_the_documented_example_is_read(tmp_path: Path) -> None:
    example = (
        str(plan_keys.__doc__).split("An example with each table:")[1].split("The tables of the trainer")[0]
    )
    plan = read_plan_file(_write(tmp_path, example))
    assert (plan.name, plan.model.name, plan.token_budget) == ("my-run", "qwen3.6-27b", 65_536)
    assert plan.draft.layer_ids == (1, 16, 31, 46, 61)
    assert (len(plan.cards), plan.cards[0].name, plan.margin) == (8, "rtx-pro-6000", 0.04)


def test_a_plan_without_gpus_has_none_and_is_named_after_its_file(tmp_path: Path) -> None:
    plan = read_plan_file(_write(tmp_path, SMALL))
    assert (plan.name, plan.cards, plan.num_targets) == ("run", (), 7)


def test_the_trainers_tables_are_passed_over(tmp_path: Path) -> None:
    text = SMALL + "".join(f"[{name}]\nanything = 1\n" for name in sorted(plan_keys.TRAINER_TABLES))
    assert read_plan_file(_write(tmp_path, text)).model.name == "qwen3-0.6b"


def test_five_mistakes_are_reported_at_once_with_their_lines(tmp_path: Path) -> None:
    text = """\
[model]
preset = "qwen3-0.6b"

[batch]
token_budgt = 65536
max_anchors = "many"

[memory]
dtype = "bfloat17"
allocator = \"\"\"
expandable_segment:True\"\"\"

[draft]
layer_ids = [
  1, 9,
  99,
]
"""
    error = _refused(tmp_path, text)
    path = tmp_path / "run.toml"
    assert error.exit_code == 2
    assert error.message.splitlines() == [
        f"{path} has 5 mistakes:",
        f"  {path}:5: batch.token_budgt: it is not known; did you mean 'token_budget'?",
        f"  {path}:6: batch.max_anchors: 'many' is not a count",
        f"  {path}:9: memory.dtype: 'bfloat17' is not known; did you mean 'bfloat16'?",
        f"  {path}:10: memory.allocator: 'expandable_segment' is no option of PyTorch's allocator; "
        "did you mean 'expandable_segments'?",
        f"  {path}:14: draft.layer_ids: 99 out of range: qwen3-0.6b has 28 layers, 0 to 27",
    ]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[modle]\n" + SMALL, "run.toml:1: modle: it is not known; did you mean 'model'?"),
        ("colour = 1\n" + SMALL, "run.toml:1: colour: it is not known"),
        ("name = 3\n" + SMALL, "run.toml:1: name: text is expected, not 3"),
        ('name = "a/b"\n' + SMALL, "run.toml:1: name: 'a/b' cannot name a report"),
        ("batch = 3\n" + SMALL, "run.toml:1: batch: it is a table: write [batch]"),
        ("", "[model]: no model is named"),
        ('model = "x"\n', "run.toml:1: model: it is a table: write [model]"),
        ("[model]\npreset = 3\n", "run.toml:2: model.preset: text is expected, not 3"),
        ("token_budget = 1\n" + SMALL, "run.toml:1: token_budget: it belongs in [batch]"),
        (SMALL + "[batch]\nmax_anchors = 1\nmax_anchors = 2\n", "run.toml:5: not valid TOML: the key or"),
        ("a = " + "[" * 5000 + "]" * 5000, "run.toml: not valid TOML: it nests too deeply"),
        (SMALL + "config = {a" + ".a" * 90 + " = 1}", "run.toml: not valid TOML: it nests too deeply"),
        (
            SMALL + "[placement]\ntargets = 0\ndrafters = 0\n",
            "run.toml:4: placement.targets: 0 targets and 0",
        ),
        (SMALL + 'id = "a/b"\n', "run.toml:3: model.id: a model is named twice, here and by model.preset"),
        (
            SMALL + "[batch]\ntoken_budget = true\n",
            "run.toml:4: batch.token_budget: a count is expected, not true",
        ),
        (
            SMALL + "[batch]\ntoken_budget = 0\n",
            "run.toml:4: batch.token_budget: 0 is too small; the least is 1",
        ),
        (
            SMALL + "[batch]\ntoken_budget = 8\n",
            "run.toml:4: batch.token_budget: 8 tokens do not hold one block of 16; raise it or --block-size",
        ),
        (
            SMALL + "[draft]\nlayer_ids = [9, 1]\n",
            "run.toml:4: draft.layer_ids: 9,1 do not ascend",
        ),
        (
            SMALL + '[placement]\ngpus = 4\ngpu = "h100"\n',
            "run.toml:4: placement.gpus: 7 targets and 1 drafter need 8 GPUs, there are 4",
        ),
        (SMALL + "[loss]\nchunked = 1\n", "run.toml:4: loss.chunked: true or false is expected, not 1"),
        (SMALL + "[loss]\ngamma = -1\n", "run.toml:4: loss.gamma: -1.0 is not above zero"),
        (
            SMALL + '[placement]\ngpu = "h10"\n',
            "run.toml:4: placement.gpu: the card table has no 'h10'; did you mean 'h100'?",
        ),
        (SMALL + '[[placement.cards]]\nname = "x"\n', "run.toml:3: placement.cards.0.memory: a card that is"),
        (
            SMALL + '[target]\nstep = "nothing"\n',
            "run.toml:4: target.step: 'nothing' is not of the form module:function",
        ),
    ],
)
def test_a_mistake_is_told_with_its_line(tmp_path: Path, text: str, message: str) -> None:
    shown = _refused(tmp_path, text).message.replace(f"{tmp_path}/", "")
    assert shown.startswith(message)


def test_twenty_mistakes_are_shown_and_the_others_counted(tmp_path: Path) -> None:
    lines = _refused(tmp_path, SMALL + "[batch]\n" + "".join(f"k{i} = 1\n" for i in range(23))).message
    assert (len(lines.splitlines()), lines.splitlines()[-1]) == (22, "  and 3 more")


def test_broken_toml_is_told_with_line_and_text(tmp_path: Path) -> None:
    error = _refused(tmp_path, "[memory]\ndtype = bfloat16\n")
    assert error.message == f"{tmp_path}/run.toml:2: not valid TOML: Invalid value: dtype = bfloat16"
    assert error.exit_code == 2


@pytest.mark.parametrize(
    "make", [lambda path: None, lambda path: path.mkdir(), lambda path: path.write_bytes(b"\xff\xfe")]
)
def test_a_file_that_cannot_be_read_is_no_traceback(tmp_path: Path, make: object) -> None:
    path = tmp_path / "run.toml"
    make(path)  # type: ignore[operator]
    with pytest.raises(DoctorError, match=r"--plan: .*run\.toml"):
        read_plan_file(path)


def test_a_model_file_is_found_beside_the_plan(tmp_path: Path) -> None:
    (tmp_path / "tiny.json").write_text(
        '{"model_type": "qwen3", "vocab_size": 100, "hidden_size": 64, "num_hidden_layers": 12}',
        encoding="utf-8",
    )
    plan = read_plan_file(_write(tmp_path, '[model]\nconfig = "tiny.json"\n'))
    assert (plan.model.name, plan.model.config["vocab_size"]) == ("tiny", 100)
