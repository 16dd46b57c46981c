"""`--ane-cluster`: what it cannot be combined with, and that Dask is not imported without it."""

from __future__ import annotations

import sys
from fnmatch import fnmatch

import pytest

from tests.plugin.conftest import Project

CLUSTER = "--ane-cluster=tcp://127.0.0.1:9"


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (("-n", "2"), "*--ane-cluster and -n: *leave out -n, or say --ane-cluster=none."),
        (
            ("--ane-backend=coreml",),
            "*Core ML is asked on workers*--ane-backend=coreml out, *",
        ),
        (("--ane-record",), "*records what workers with a Neural Engine measure by itself*"),
        (("--ane-cluster-timeout=soon",), "*--ane-cluster-timeout=soon: *"),
        (("--ane-cluster=nonsense",), "*nonsense is no scheduler's address; give one such as *"),
        (("--ane-cluster=tcp://127.0.0.1",), "*tcp://127.0.0.1 is no scheduler's address; *"),
        ((), "*No scheduler answers at tcp://127.0.0.1:9 (*); start one with: dask scheduler"),
    ],
)
def test_what_is_refused(project: Project, options: tuple[str, ...], says: str) -> None:
    project.packages(good="none")
    limit = () if options else ("--ane-cluster-timeout=1 s",)
    result = project.gate(CLUSTER, *options, *limit)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    text = result.stdout.str() + result.stderr.str()
    assert any(fnmatch(line, says) for line in text.splitlines()), text


def test_the_manifest_names_one(project: Project) -> None:
    project.packages('[run]\ncluster = "tcp://127.0.0.1:9"\n', good="none")
    result = project.gate("--ane-cluster-timeout=1 s")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    assert "No scheduler answers at tcp://127.0.0.1:9" in result.stdout.str() + result.stderr.str()


def test_none_is_no_cluster_whatever_the_manifest_says(project: Project) -> None:
    project.packages('[run]\ncluster = "tcp://127.0.0.1:9"\nstore = "s4://x"\n', good="none")
    result = project.gate("--ane-cluster=none", "--ane-store=none", "-k", "compression")
    result.assert_outcomes(passed=1, deselected=3)


def test_benchmarks_time_this_machine(project: Project) -> None:
    project.packages(good="none")
    result = project.run("--ane-shards=all", "-m", "bench", CLUSTER, "--ane-cluster-timeout=1 s")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    text = result.stdout.str() + result.stderr.str()
    assert "benchmarks time the machine that pytest runs on" in text


@pytest.mark.slow
@pytest.mark.drawn
def test_without_it_dask_is_not_imported(project: Project) -> None:
    project.packages(good="none")
    project.pytester.makeconftest(
        "import sys\n"
        "def pytest_unconfigure():\n"
        "    print('dask' in sys.modules, 'distributed' in sys.modules)\n"
    )
    result = project.pytester.run(
        sys.executable, "-m", "pytest", "--ane-shards=all", "-m", "gate", "-k", "placement", "-q",
        f"--ane-cache={project.workshop.cache}",
    )  # fmt: skip
    assert result.ret == pytest.ExitCode.OK
    result.stdout.fnmatch_lines(["False False"])
