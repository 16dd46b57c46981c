"""Today's policy over old measurements."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from pytest_ane.cli import main
from pytest_ane.gates.verdict import Bound
from pytest_ane.project.entries import read_manifest
from pytest_ane.records.history import judge
from pytest_ane.records.memory import Memory
from tests.records.runs import line, write

MANIFEST = """
[models.mini]
family = "llama"
source = { path = "seeded" }
shards = "L00-L01, head.0"

[models.mini.policy]
fidelity = { min-cosine = 0.99 }
throughput = { min-tok-s = 9.0 }
"""
COSINES = (0.999, 0.98, 0.999, 0.985, math.nan)


@pytest.fixture
def memory(tmp_path: Path) -> Memory:
    (tmp_path / "shards.toml").write_text(MANIFEST)
    folder = write(
        tmp_path / "history",
        *(line(i, {"cosine.min": x, "probes": 4}) for i, x in enumerate(COSINES)),
        *(line(i, {"cosine.min": 0.9}, subject="mini:L07") for i in range(2)),
        line(0, {"ineligible_ops": 3}, gate="placement"),
        line(0, {"kl.mean": 0.2}, gate="behaviour", subject="mini"),
        line(0, {"tok_s": 8.0}, gate="throughput", subject="mini", part="decode"),
    )
    return Memory(folder)


def test_since_when_it_would_have_been_red(memory: Memory, tmp_path: Path) -> None:
    """NaN keeps no limit; a run of red ones before counts by itself."""
    found = judge(memory, read_manifest(tmp_path / "shards.toml"), gate="fidelity")
    still, once = found.red
    assert (still.since.commit, still.until, still.value) == (f"{3:040x}", None, 0.985)
    assert still.bound == Bound(0.99, "above")
    assert (once.since.commit, once.until) == (f"{1:040x}", once.since)
    assert (found.figures, found.subjects, found.silent) == (1, ("mini:L07",), ())


def test_the_command_says_what_it_cannot_judge(
    memory: Memory, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["history", "judge", "--manifest", str(tmp_path / "shards.toml")]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[1:] for line in lines[1:5]] == [
        ["now", "mini", "behaviour", "kl.mean", "0.2", "<=", "0.05"],
        ["now", "mini", "throughput", "decode", "tok_s", "8", ">=", "9"],
        ["now", "mini:L01", "fidelity", "cosine.min", "0.985", ">=", "0.99"],
        ["000000000", "mini:L01", "fidelity", "cosine.min", "0.98", ">=", "0.99"],
    ]
    assert lines[6:] == [
        "by today's policy 3 of 3 figures would be red now",
        "no limit on a figure: placement",
        "not in the manifest, so not judged: mini:L07",
        "not judged: what a gate finds without a figure, and limits that depend on the "
        "measurement itself, such as of the total error",
    ]
