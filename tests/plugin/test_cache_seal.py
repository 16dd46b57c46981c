"""Entries of the cache that were damaged or edited, and a cache that can only be read."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest

from pytest_ane.make.shared_store import SEAL
from pytest_ane.probes.recording import load, save
from tests.permissions import permitted, tree
from tests.plugin.conftest import Project

PASSED = 13


@pytest.fixture
def root(project: Project, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A cache of the project's own with everything in it that its gates use."""
    copy = tmp_path_factory.mktemp("shared") / "cache"
    project.llama().gate().assert_outcomes(passed=PASSED)
    # Other workers may be building in it.
    return Path(shutil.copytree(project.workshop.cache, copy, ignore=shutil.ignore_patterns("tmp")))


def flip(file: Path) -> None:
    """A bit, with the times of the file put back."""
    stat, data = file.stat(), bytearray(file.read_bytes())
    data[-3] ^= 64
    file.write_bytes(data)
    os.utime(file, ns=(stat.st_atime_ns, stat.st_mtime_ns))


@pytest.mark.slow
def test_edited_entries_are_made_again_and_the_summary_says_so(
    project: Project, root: Path
) -> None:
    weights, recordings = sorted(root.rglob("weight.bin")), sorted(root.rglob("*.safetensors"))
    for file in weights:
        flip(file)
    for file in recordings:
        tensors, about = load(file.parent)
        if "probes" in about:
            about["probes"] = about["probes"][::2]
        save(file.parent, tensors, about)
    result = project.gate(f"--ane-cache={root}")
    result.assert_outcomes(passed=PASSED)
    result.stdout.fnmatch_lines(
        [
            "note: mini:L00: its package in the cache *; it is made again.",
            "note: mini:L00: its recorded reference in the cache *; it is made again.",
        ]
    )
    assert "made again" not in project.gate(f"--ane-cache={root}").stdout.str()


@pytest.mark.slow
def test_rehash_does_not_believe_the_list_of_digests(project: Project, root: Path) -> None:
    lines = []
    for file in (root / "artifacts").rglob("weight.bin"):
        flip(file)
        stat = file.stat()
        entry = next(folder for folder in file.parents if (folder / SEAL).exists())
        state = [stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns, stat.st_ino, stat.st_dev]
        sealed = json.loads((entry / SEAL).read_text())["files"]
        lines.append(json.dumps([str(file), state, sealed[file.relative_to(entry).as_posix()]]))
    (root / "digests" / "files.jsonl").write_text("\n".join(lines))
    options = (f"--ane-cache={root}", "-k", "compression")
    assert "made again" not in project.gate(*options).stdout.str()
    assert "made again" in project.gate(*options, "--ane-rehash").stdout.str()


@pytest.mark.slow
def test_everything_warm_passes_from_a_read_only_cache(project: Project, root: Path) -> None:
    with permitted(0o555, *tree(root)):
        result = project.gate(f"--ane-cache={root}")
        result.assert_outcomes(passed=PASSED)
        assert "cannot be written" not in result.stdout.str()


@pytest.mark.slow
def test_what_a_read_only_cache_lacks_is_one_sentence(project: Project, root: Path) -> None:
    shutil.rmtree(root / "artifacts")
    (root / "artifacts").mkdir()
    with permitted(0o555, *tree(root)):
        result = project.gate(f"--ane-cache={root}", "-k", "compression", shards="L00")
    result.assert_outcomes(errors=1, deselected=3)
    result.stdout.fnmatch_lines(["mini:L00: its package is not in the cache, and *"])
