import tomllib

from dflash_doctor.intake.plan_lines import line_of, lines_of_keys

TEXT = '''\
name = "a" # [not.a.table]
"quoted key" = 1
a.b = 2

[table] # comment
multi = """
fake = 1
[fake]
"""
list = [
  1, # ]
  "]",
]
inline = { x = 1, y = "}" }
'single' = 'c:\\'
after = 1

[[cards]]
name = "x"
[[cards]]
name = "y"
[cards.band]
low = 1
'''


def test_each_key_has_its_line() -> None:
    tomllib.loads(TEXT)
    lines = lines_of_keys(TEXT)
    assert {
        path: lines[path] for path in ("name", "quoted key", "a.b", "table", "table.multi", "table.list")
    } == {
        "name": 1,
        "quoted key": 2,
        "a.b": 3,
        "table": 5,
        "table.multi": 6,
        "table.list": 10,
    }
    assert (lines["table.inline"], lines["table.single"], lines["table.after"]) == (14, 15, 16)
    assert (lines["cards.0.name"], lines["cards.1.name"]) == (19, 21)
    assert "fake" not in lines and "table.fake" not in lines


def test_a_path_without_a_line_has_that_of_its_holder() -> None:
    lines = lines_of_keys(TEXT)
    assert line_of(lines, "table.inline.x") == 14
    assert line_of(lines, "nowhere") is None
