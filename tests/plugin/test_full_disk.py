"""A disk that fills up in the middle of a run, and runs that are killed: the next one goes on."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.plugin.conftest import Project
from tests.plugin.projects import COUNT

pytestmark = [pytest.mark.heavy, pytest.mark.drawn]

FILL = """
import shutil

def filled(given, *arguments):
    if given.id == "L01":
        folder = Path("{folder}")
        folder.joinpath("of-others").write_bytes(bytes(shutil.disk_usage(folder).free - 20_000))
    counted(given, *arguments)

shard._build = filled
"""
STALL = """
import tempfile, time

convert = shard.convert

def stalled(*arguments, subject, **options):
    converted = convert(*arguments, subject=subject, **options)
    if subject == "mini:L01":
        Path(tempfile.gettempdir(), "converted").write_bytes(bytes(1000))
        Path(__file__).with_name("stalled").touch()
        time.sleep(600)
    return converted

shard.convert = stalled
"""
COMMAND = ("--ane-shards=L00-L01", "-m", "gate", "--ane-cache=cache", "-k", "not fidelity")


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of its own with room for some shards of 100 to 200 kB."""
    folder = tmp_path / "small"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", str(folder)]
    try:
        subprocess.run(mount, check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("mounting a file system needs a privileged Linux")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)


def test_a_full_cache_fails_what_it_must_and_the_next_run_goes_on(
    project: Project, small_disk: Path
) -> None:
    project.llama().pytester.makeconftest(COUNT + FILL.format(folder=small_disk))
    command = [*COMMAND, f"--ane-cache={small_disk}"]
    result = project.pytester.runpytest_subprocess(*command)
    result.assert_outcomes(passed=2, errors=2)
    result.stdout.fnmatch_lines(
        [
            f"Building into {small_disk} failed: No space left on device* (0.0 GB "
            "free there, * GB in the temporary folder *); * What was finished before is kept.",
            "The disk is too small for 1 shard still to be built: *",
        ]
    )
    assert project.built() == ["L00", "L01"]
    assert [path.name for path in (small_disk / "tmp").iterdir()] == []
    (small_disk / "of-others").unlink()
    (project.path / "conftest.py").write_text(COUNT)
    project.pytester.runpytest_subprocess(*command).assert_outcomes(passed=4)
    assert project.built()[2:] == ["L01"]


@pytest.mark.parametrize("workers", ["-n0", "-n2"])
def test_a_run_that_was_killed_is_taken_up_again(
    project: Project, workers: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    project.llama().pytester.makeconftest(COUNT + STALL)
    (project.path / "scratch").mkdir()
    monkeypatch.setenv("TMPDIR", str(project.path / "scratch"))
    command = [sys.executable, "-m", "pytest", workers, *COMMAND]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, start_new_session=True)
    deadline = time.monotonic() + 120
    while not (project.path / "stalled").exists():
        assert process.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.05)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait(30)
    left = [path for path in (project.path / "scratch").iterdir() if path.is_dir()]
    assert left
    assert any((project.path / "cache" / "tmp").iterdir())

    (project.path / "conftest.py").write_text(COUNT)
    before = len(project.built())
    project.pytester.runpytest_subprocess(workers, *COMMAND).assert_outcomes(passed=4)
    assert "L01" in project.built()[before:]
    assert project.built().count("L00") == 1
    assert not any((project.path / "scratch").iterdir())
    assert not any((project.path / "cache" / "tmp").iterdir())
