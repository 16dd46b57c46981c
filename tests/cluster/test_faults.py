"""What goes wrong on the way: verdicts are those of one machine, or unproven with the reason."""

from __future__ import annotations

import json
import re
import subprocess
from collections import Counter
from collections.abc import Iterator
from datetime import datetime, timedelta, timezone
from pathlib import Path

import pytest

from tests.cluster.conftest import Result, Runs, Site, kill, until
from tests.cluster.faults import DAY
from tests.s3_server import BUCKET, FAULTS, s3_server

pytestmark = [pytest.mark.cluster, pytest.mark.drawn]
CLOCK = Path(__file__).parent / "clock"
SHARDS = ("mini:L00", "mini:L01", "mini:head.0", "mini:head.1")


@pytest.fixture
def alone(runs: Runs) -> Result:
    """The run of one machine, which all others are held against."""
    return runs.mini().run(f"--ane-cache={runs.folder / 'alone'}")


def built_once(site: Site, *, but: int = 0) -> None:
    """Nothing was built twice but what a dead process held."""
    counts = Counter(shard for shard, pid in site.lines("builds") if int(pid) != but)
    assert set(counts) == set(SHARDS)
    assert set(counts.values()) == {1}


def test_a_killed_worker(site: Site, runs: Runs, alone: Result) -> None:
    site.work("one", "slow=2")
    site.work("two", "slow=2")
    process = runs.mini().start(f"--ane-cluster={site.url}")
    _, pid = until(lambda: site.lines("begun"), "a first build")[0]
    kill(int(pid))
    result = runs.end(process)
    assert result.code == 0, result.text
    assert _figures(result) == _figures(alone)
    built_once(site, but=int(pid))
    assert re.search(r"note: a worker on \S+ \(tcp://\S+\) is gone", result.text)


def test_a_shard_that_kills_its_workers_is_named(site: Site, runs: Runs) -> None:
    site.work("one", "die=L01")
    result = runs.mini().run(f"--ane-cluster={site.url}")
    assert result.code == 1
    statuses = result.statuses()
    unproven = {gate for gate, status in statuses.items() if status == "unproven"}
    assert unproven == {f"{gate} mini:L01" for gate in ("compression", "fidelity", "placement")} | {
        "behaviour mini"
    }
    assert set(statuses.values()) == {"passed", "unproven"}
    assert "mini:L01: 4 workers were lost that had it" in result.text


def test_a_killed_scheduler(site: Site, runs: Runs) -> None:
    site.work("one", "slow=2")
    process = runs.mini().start(f"--ane-cluster={site.url}")
    until(lambda: site.lines("begun"), "a first build")
    site.processes[0].kill()
    result = runs.end(process)
    assert result.code == 1
    assert set(result.statuses().values()) == {"unproven"}
    assert f"the scheduler {site.url} is gone" in result.text
    # The machine says so, too, and ends.
    until(lambda: site.processes[1].poll() is not None, "the end of the worker")
    assert site.processes[1].returncode == 1
    assert b"is gone; start it, and this worker again" in site.log("one")


@pytest.fixture
def small_disk(site: Site) -> Iterator[Path]:
    """The cache of a machine called `small`, which holds no shard."""
    folder = site.folder / "cache-small"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=24k", "tmpfs", str(folder)]
    if subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("a small disk cannot be mounted here")
    yield folder
    subprocess.run(["umount", "--lazy", str(folder)], check=True)


@pytest.mark.usefixtures("small_disk")
def test_a_full_disk_on_one_worker(site: Site, runs: Runs, alone: Result) -> None:
    site.work("small")
    site.work("large")
    result = runs.mini().run(f"--ane-cluster={site.url}")
    assert result.code == 0, result.text
    assert _figures(result) == _figures(alone)
    assert "is left out: Building into" in result.text
    assert "No space left on device" in result.text


def test_a_store_that_fails(
    site: Site, runs: Runs, alone: Result, monkeypatch: pytest.MonkeyPatch
) -> None:
    with s3_server() as server:
        for name, value in server.environment.items():
            monkeypatch.setenv(name, value)
        site.work("one")
        server.faults[:] = [*FAULTS, "", *FAULTS]
        store = f"--ane-store=s3://{BUCKET}/ane"
        result = runs.mini().end(runs.start(f"--ane-cluster={site.url}", store))
        assert result.code == 0, result.text
        assert _figures(result) == _figures(alone)
        built_once(site)
        # The next machine fetches what is whole there and mends the rest, another fetches all.
        server.faults.clear()
        for name in ("two", "three"):
            site.processes[-1].terminate()
            site.processes[-1].wait()
            before = len(site.lines("builds"))
            site.work(name)
            result = runs.end(runs.start(f"--ane-cluster={site.url}", store))
            assert result.code == 0, result.text
            assert _figures(result) == _figures(alone)
        assert len(site.lines("builds")) == before
        assert re.search(r"^store s3://.*: [1-9]\d* entries fetched, 0 stored$", result.text, re.M)


def _figures(result: Result) -> list[dict[str, str]]:
    """Properties without what was told beside them."""
    every = (dict(properties) for properties in result.properties.values())
    return [{k: v for k, v in each.items() if k != "ane.note"} for each in every]


@pytest.mark.parametrize("seconds", [DAY, -DAY])
def test_another_clock(site: Site, runs: Runs, seconds: int) -> None:
    """Evidence has the time of the machine that judges: neither of the future nor too old."""
    site.environment = {"PYTHONPATH": str(CLOCK), "CLOCK_OF_TEST": str(seconds)}
    site.work("plain")
    site.work("mac", "genuine", builds=0, mac=True)
    runs.own(
        '[models.own.policy.placement]\nrequire = "plan"\n'
        '[models.own.policy.evidence]\nmax-age = "2 hours"\n',
        good="none",
    )
    result = runs.run(f"--ane-cluster={site.url}")
    assert result.code == 0, result.text
    file = runs.folder / "evidence" / "own" / "good.placement.json"
    recorded = json.loads(file.read_text())["time"]
    time = datetime.fromisoformat(recorded.replace("Z", "+00:00"))
    assert abs(datetime.now(timezone.utc) - time) < timedelta(minutes=10)


def test_a_worker_of_another_version_is_left_out(site: Site, runs: Runs) -> None:
    site.work("other", "version=torch:1.0")
    nobody = runs.own(good="none").run(f"--ane-cluster={site.url}", "--ane-cluster-timeout=2 s")
    assert nobody.code == 4
    assert "its torch is 1.0, and here it is " in nobody.text
    site.work("same")
    result = runs.run(f"--ane-cluster={site.url}")
    assert result.code == 0
    assert "is left out: its torch is 1.0" in result.text


def test_a_worker_of_dask_alone_is_left_out(site: Site, runs: Runs) -> None:
    site._start("dask", "-m", "dask", "worker", site.url, "--no-dashboard", "--nthreads", "1")
    until(lambda: b"Registered to" in site.log("dask"), "Dask's worker")
    result = runs.own(good="none").run(f"--ane-cluster={site.url}", "--ane-cluster-timeout=2 s")
    assert result.code == 4
    assert "it is one of Dask's own; start it with: pytest-ane worker" in result.text


def test_a_checkout_without_the_weights(site: Site, runs: Runs) -> None:
    (runs.folder / "mini.gguf").write_bytes(runs.llama.read_bytes())
    elsewhere = site.folder / "elsewhere"
    elsewhere.mkdir()
    site.checkout = elsewhere
    site.work("bare")
    runs.mini().change(str(runs.llama), "mini.gguf")
    limit = "--ane-cluster-timeout=1 s"
    lacking = runs.run(f"--ane-cluster={site.url}", limit)
    assert lacking.code == 1
    assert set(lacking.statuses().values()) == {"unproven"}
    assert "builds nothing of mini: " in lacking.text
    other = bytearray(runs.llama.read_bytes())
    other[-1] ^= 1
    (elsewhere / "mini.gguf").write_bytes(other)
    differing = runs.run(f"--ane-cluster={site.url}", limit)
    assert set(differing.statuses().values()) == {"unproven"}
    assert "differ from those here" in differing.text
    (elsewhere / "mini.gguf").write_bytes(runs.llama.read_bytes())
    assert runs.run(f"--ane-cluster={site.url}").code == 0


def test_no_neural_engine_is_unproven_with_the_command(site: Site, runs: Runs) -> None:
    site.work("plain")
    runs.own('[models.own.policy.placement]\nrequire = "plan"\n', good="none", other="none")
    result = runs.run(f"--ane-cluster={site.url}", "--ane-cluster-timeout=1 s", "-k", "placement")
    assert result.code == 1
    assert set(result.statuses().values()) == {"unproven"}
    assert f"on a Mac, run: pytest-ane worker {site.url}" in result.text


def test_nobody_there(site: Site, runs: Runs) -> None:
    limit = "--ane-cluster-timeout=1 s"
    empty = runs.own(good="none").run(f"--ane-cluster={site.url}", limit)
    assert empty.code == 4
    assert f"No worker is connected to {site.url}" in empty.text
    assert f"run: pytest-ane worker {site.url}" in empty.text
    none = runs.run("--ane-cluster=tcp://127.0.0.1:9", limit)
    assert none.code == 4
    assert "No scheduler answers at tcp://127.0.0.1:9" in none.text
    odd = runs.run("--ane-cluster=nonsense", limit)
    assert odd.code == 4
    assert "nonsense is no scheduler's address" in odd.text
