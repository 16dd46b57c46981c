"""The write-up in the docs is what the commands make of its run today, and of a new one."""

from __future__ import annotations

import re
import shlex
import shutil
from pathlib import Path

import pytest

from pytest_ane.cli import main
from pytest_ane.report.writeups import paths, read
from tests.docs import sessions
from tests.docs.pages import ROOT
from tests.docs.sessions import Command
from tests.forked import Forge

FOLDER = ROOT / "docs" / "experiments"
ZAYA = FOLDER / "001-4-bit-palettes-on-zaya-l01.md"
OF_ITS_RUN = re.compile(
    r"- (Intent: recorded|Run: begun|Commit|Machine|Versions|Manifest)|\| zaya1-8b:L01 \| \w{64}"
)
"""Lines that no other run has."""


@pytest.mark.slow
@pytest.mark.parametrize("page", paths(FOLDER), ids=lambda page: page.stem)
def test_it_is_what_finish_makes_of_its_run_today(page: Path, tmp_path: Path) -> None:
    shutil.copytree(FOLDER, tmp_path / "docs" / "experiments")
    (tmp_path / "examples").mkdir()
    shutil.copy(ROOT / "examples" / "zaya1-8b.toml", tmp_path / "examples")
    copy = tmp_path / page.relative_to(ROOT)
    assert main(["report", "--writeup", str(copy)]) == 0
    name = page.relative_to(ROOT)
    assert copy.read_text() == page.read_text(), f"run: pytest-ane report --writeup {name}"


@pytest.mark.drawn
@pytest.mark.heavy
def test_a_new_run_comes_to_the_same(forge: Forge, tmp_path: Path) -> None:
    sessions.furnish(tmp_path)
    shutil.copy(ROOT / "examples" / "zaya1-8b.toml", tmp_path)
    before = read(ZAYA)
    new = Command(
        "pytest-ane report --intent '4-bit palettes on ZAYA L01' --manifest zaya1-8b.toml "
        "--shards L01"
    )
    _, output = sessions.run(forge, new, tmp_path)
    _, run, finish = (line.partition(": ")[2] for line in output.splitlines())
    assert " --ane-shards=L01 -m gate " in run
    code, output = sessions.run(forge, Command(run), tmp_path)
    assert code == 0, output
    shutil.copy(before.beside(".bound.json"), tmp_path / "bound.json")
    code, output = sessions.run(forge, Command(f"{finish} bound.json"), tmp_path)
    assert code == 0, output
    after = read(tmp_path / shlex.split(finish)[-1])
    assert after.path.name == ZAYA.name
    expected = [sessions.shown(_lines(text)) for text in before.sections.values()]
    actual = [sessions.shown(_lines(text)) for text in after.sections.values()]
    for one, other in zip(expected, actual, strict=True):
        assert not sessions.difference(one, other)


def _lines(text: str) -> str:
    """A section as any run of these bytes has it, wherever its manifest is."""
    kept = "\n".join(line for line in text.splitlines() if not OF_ITS_RUN.match(line))
    return kept.replace("examples/zaya1-8b.toml", "zaya1-8b.toml")
