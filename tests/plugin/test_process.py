"""Runs whose standard output is closed or full, and runs that SIGTERM ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from pytest_ane.plugin._process import is_worker, run_id, send_id, worker
from tests.plugin.conftest import Project
from tests.plugin.projects import COUNT
from tests.plugin.test_full_disk import COMMAND, STALL

GATES = [sys.executable, "-m", "pytest", "--ane-shards=all", "-m", "gate", "--ane-cache=cache"]


def run(project: Project, *more: str, **options: Any) -> tuple[int, str]:
    """Exit code and standard error of a run in a process of its own."""
    done = subprocess.run(
        [*GATES, *more], cwd=project.path, stderr=subprocess.PIPE, check=False, **options
    )
    return done.returncode, done.stderr.decode()


@pytest.mark.drawn
@pytest.mark.slow
@pytest.mark.skipif(not Path("/dev/full").exists(), reason="Linux has a device that is full")
@pytest.mark.parametrize(
    ("more", "unbuffered"), [((), ""), ((), "1"), (("-s",), "1"), (("-n1",), "")]
)
def test_a_full_standard_output_is_one_sentence(
    project: Project, more: tuple[str, ...], unbuffered: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONUNBUFFERED", unbuffered)
    project.packages(good="none")
    with Path("/dev/full").open("w") as full:
        assert run(project, *more, stdout=full) == (
            3,
            "ane: Standard output cannot be written: No space left on device; the run has ended "
            "without a verdict.\n",
        )


@pytest.mark.drawn
@pytest.mark.parametrize("more", [(), ("-s",)])
@pytest.mark.parametrize(("package", "code"), [("good", 0), ("nan", 1)])
@pytest.mark.slow
def test_a_closed_standard_output_leaves_the_verdict(
    project: Project, package: str, code: int, more: tuple[str, ...]
) -> None:
    project.packages(**{package: "none"})
    assert run(project, *more, preexec_fn=lambda: os.close(1)) == (code, "")


@pytest.mark.slow
@pytest.mark.drawn
def test_a_reader_that_has_seen_enough_gets_no_traceback(project: Project) -> None:
    project.packages(good="none")
    with subprocess.Popen(
        GATES, cwd=project.path, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        assert process.stderr.read() == b""
    assert process.returncode == 1


@pytest.mark.drawn
@pytest.mark.heavy
@pytest.mark.parametrize("group", [False, True], ids=["process", "group"])
@pytest.mark.parametrize("workers", ["-n0", "-n2"])
def test_sigterm_leaves_no_temporary_files(
    project: Project, tmp_path: Path, workers: str, group: bool
) -> None:
    """A CI that cancels a job sends it to the process, or to all of the job's."""
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
        )
        deadline = time.monotonic() + 120
        while not (project.path / "stalled").exists():
            assert process.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.05)
        assert any(temporary.glob("pytest-ane-*"))
        if group:
            os.killpg(process.pid, signal.SIGTERM)
        else:
            process.terminate()
        code = process.wait(60)
    text = (tmp_path / "log").read_text()
    assert code == 143, text
    assert "Traceback" not in text
    assert [path.name for path in temporary.iterdir() if path.name != "pytest-of-root"] == []
    assert [path.name for path in (project.path / "cache" / "tmp").iterdir()] == []


# A run has one BLAS thread, whatever a conftest imports first.

NAMES = ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "GOMP_SPINCOUNT")


@pytest.mark.slow
def test_a_conftest_that_imports_numpy_is_not_too_early(project: Project) -> None:
    """In a process of its own, for how many threads numpy has is said once."""
    for name in NAMES:
        os.environ.pop(name, None)
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


def config(**more: Any) -> pytest.Config:
    return cast("pytest.Config", SimpleNamespace(stash=pytest.Stash(), **more))


def test_workers_have_the_name_of_the_run_that_started_them() -> None:
    controller = config()
    given: dict[str, Any] = {"workerid": "gw3"}
    send_id(given, controller)
    started = config(workerinput=given)
    assert run_id(started) == run_id(controller) == run_id(controller)
    assert (is_worker(controller), is_worker(started)) == (False, True)
    assert (worker(controller), worker(started)) == ("main", "gw3")
    assert run_id(config()) != run_id(controller)
