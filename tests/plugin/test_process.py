"""Runs whose standard output is closed or full, and runs that SIGTERM ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.plugin.conftest import Project
from tests.plugin.projects import COUNT
from tests.plugin.test_full_disk import COMMAND, STALL


@pytest.mark.drawn
@pytest.mark.heavy
@pytest.mark.parametrize("how", ["process", "group", "Ctrl-C"])
@pytest.mark.parametrize("workers", ["-n0", "-n2"])
def test_a_signal_leaves_no_temporary_files(
    project: Project, tmp_path: Path, workers: str, how: str
) -> None:
    """A CI that cancels a job sends SIGTERM to the process, or to all of the job's."""
    project.llama().pytester.makeconftest(COUNT + STALL)
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    command = [sys.executable, "-m", "pytest", workers, *COMMAND]
    with (tmp_path / "log").open("w") as log:
        process = subprocess.Popen(
            command,
            cwd=project.path,
            stdout=log,
            stderr=log,
            start_new_session=True,
            env={**os.environ, "TMPDIR": str(temporary)},
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
        )
        deadline = time.monotonic() + 120
        while not (project.path / "stalled").exists():
            assert process.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.05)
        assert any(temporary.glob("pytest-ane-*"))
        if how == "process":
            process.terminate()
        else:
            os.killpg(process.pid, signal.SIGINT if how == "Ctrl-C" else signal.SIGTERM)
        code = process.wait(60)
    text = (tmp_path / "log").read_text()
    assert code == (2 if how == "Ctrl-C" else 143), text
    assert "Traceback" not in text
    assert [path.name for path in temporary.iterdir() if path.name != "pytest-of-root"] == []
    assert [path.name for path in (project.path / "cache" / "tmp").iterdir()] == []


# A run has one BLAS thread, whatever a conftest imports first.

NAMES = ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "GOMP_SPINCOUNT")


@pytest.mark.slow
def test_a_conftest_that_imports_numpy_is_not_too_early(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a process of its own, for how many threads numpy has is said once."""
    for name in NAMES:
        monkeypatch.delenv(name, raising=False)
    pytester = project.packages(good="none").pytester
    pytester.makeconftest("import numpy")
    pytester.makepyfile(
        """
        import os
        from threadpoolctl import threadpool_info

        def test_threads():
            assert {one["num_threads"] for one in threadpool_info()} == {1}
            assert os.environ["OPENBLAS_NUM_THREADS"] == "1"
        """
    )
    result = pytester.runpytest_subprocess("--ane-shards=all", "-k", "test_threads")
    result.assert_outcomes(passed=1, deselected=4)


# The id that all processes of a run share.
