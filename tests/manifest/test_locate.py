"""Lines of keys."""

from __future__ import annotations

from pytest_ane.manifest.locate import key_lines, line_of

TEXT = """\
title = "x"

[models.m]
source = { package = "p",
           file = "f" }
shards = [
    "L00",  # first
    "L01",
]
probes.count = 3

[models.m.shard."head.0".policy.fidelity]
min-cosine = 0.9

[[models.m.prompts]]
name = "a"

[[models.m.prompts]]
text = \"\"\"
two
lines\"\"\"
name = "b"

[models.'n']
'a b' = "é"
"c\\u0064" = 1
"""


def test_lines() -> None:
    lines = key_lines(TEXT)
    m = ("models", "m")
    assert {path: lines[path] for path in lines if path[:2] != m} == {
        ("title",): 1,
        ("models",): 3,
        ("models", "n"): 24,
        ("models", "n", "a b"): 25,
        ("models", "n", "cd"): 26,
    }
    assert {path[2:]: line for path, line in lines.items() if path[:2] == m} == {
        (): 3,
        ("source",): 4,
        ("source", "package"): 4,
        ("source", "file"): 5,
        ("shards",): 6,
        ("shards", 0): 7,
        ("shards", 1): 8,
        ("probes",): 10,
        ("probes", "count"): 10,
        ("shard",): 12,
        ("shard", "head.0"): 12,
        ("shard", "head.0", "policy"): 12,
        ("shard", "head.0", "policy", "fidelity"): 12,
        ("shard", "head.0", "policy", "fidelity", "min-cosine"): 13,
        ("prompts",): 15,
        ("prompts", 0): 15,
        ("prompts", 0, "name"): 16,
        ("prompts", 1): 18,
        ("prompts", 1, "text"): 19,
        ("prompts", 1, "name"): 22,
    }


def test_tables_inside_arrays_of_tables() -> None:
    lines = key_lines("[[a.b]]\n[[a.b]]\n[a.b.c]\nd = 1\n")
    assert lines["a", "b", 1, "c", "d"] == 4


def test_windows_line_ends() -> None:
    assert key_lines("a = 1\r\nb = 2\r\n")["b",] == 2


def test_the_nearest_line() -> None:
    lines = key_lines(TEXT)
    assert line_of(lines, ("models", "m", "source", "path")) == 4
    assert line_of(lines, ("models", "q")) == 3
    assert line_of(lines, ("defaults",)) is None
    assert line_of(lines, ()) is None
