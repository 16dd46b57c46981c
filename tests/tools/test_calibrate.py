"""`pytest-ane calibrate`: benchmarks run again and again, and what is kept of them."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace

import pytest

from pytest_ane.gates.throughput.baseline import read
from pytest_ane.gates.throughput.speed import Speed
from pytest_ane.gates.throughput.stored import open_storage
from pytest_ane.tools import _devices as devices
from pytest_ane.tools import calibrate
from tests.gates.throughput.runs import HERE, run, speed
from tests.packages import save_conv
from tests.tools.conftest import AsJson, Says

MANIFEST = """\
[models.own.shard.L01]
artifact = "some.mlpackage"
reference = "none"
"""
BENCHMARK = f"""\
import pytest

@pytest.mark.bench
def test_own(benchmark):
    benchmark(sum, range(20000))
    seconds = [1.0, benchmark.stats.stats.median]
    benchmark.extra_info["ane"] = dict(
        what="call", subject="own:L01", tokens=1, seconds=seconds[1:], identity={HERE}
    )
    assert False, "red, which is no matter here"
"""


class Runs:
    """In place of pytest: what its runs find, in turn, and how it was called."""

    def __init__(self, *found: Sequence[Speed], code: int = 0) -> None:
        self.calls: list[list[str]] = []
        self._found, self._code = list(found), code

    def __call__(self, command: list[str], **options: object) -> SimpleNamespace:
        self.calls.append(command[1:])
        (file,) = (Path(a.partition("=")[2]) for a in command if a.startswith("--benchmark-json="))
        if self._found:
            file.write_text(json.dumps(run(*self._found.pop(0))))
        return SimpleNamespace(returncode=self._code)


@pytest.fixture(autouse=True)
def _project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("shards.toml").write_text(MANIFEST)


def fake(monkeypatch: pytest.MonkeyPatch, runs: Runs) -> Runs:
    monkeypatch.setattr("pytest_ane.tools.calibrate.subprocess", SimpleNamespace(run=runs))
    return runs


def own(*seconds: float, subject: str = "own:L01", what: str = "call") -> Speed:
    return speed(*seconds, what=what, subject=subject, tokens=0 if what == "load" else 1)


def test_a_table_and_a_file(monkeypatch: pytest.MonkeyPatch, says: Says) -> None:
    seconds = [(1 / 0.9, 2.0), (1 / 1.1, 2.02), (1.0, 1.98)]
    runs = fake(monkeypatch, Runs(*([own(s), own(t, what="load")] for s, t in seconds)))
    out = says("calibrate", "--runs=3", "--ane-cache=c", "-k", "L01 and not T64")
    assert [line.rpartition(",")[0] for line in out[:3]] == [
        f"run {n} of 3: 2 benchmarks" for n in (1, 2, 3)
    ]
    assert out[3:-1] == [
        "",
        "Apple M4 Max, macOS 26.1, coreml, CPU_AND_NE",
        "benchmark     median  sigma  2.8 sigma  runs",
        "own:L01 T=1   1.00 s   10 %       28 %     3",
        "own:L01 load  2.00 s    1 %      2.8 %     3",
        "sigma of 3 runs is itself known to 50 %; see --runs",
    ]
    assert out[-1].startswith("stored in ")
    assert [one.medians for one in read(open_storage(), HERE)] == [
        (1 / 0.9, 1 / 1.1, 1.0),
        (2, 2.02, 1.98),
    ]
    assert runs.calls[0][:4] == ["-m", "pytest", "-m", "bench"]
    assert {"--ane-shards=all", "--ane-unproven=allow"} <= set(runs.calls[0])
    at = runs.calls[0].index("-k")
    assert runs.calls[0][at + 1] == "L01 and not T64"
    assert "--ane-backend" not in runs.calls[0]


def test_as_json(monkeypatch: pytest.MonkeyPatch, as_json: AsJson) -> None:
    fake(monkeypatch, Runs([own(1.0)], [own(1.1)]))
    found = as_json("calibrate", "--runs=2", "--shards=L01", "--benchmark-storage=file://runs")
    ((noise,),) = (calibration["noises"] for calibration in found["calibrations"])
    assert (noise["subject"], noise["medians"]) == ("own:L01", [1.0, 1.1])
    assert all(Path(file).is_file() for file in found["files"])


def test_noise_lies_where_a_models_runs_do(monkeypatch: pytest.MonkeyPatch, says: Says) -> None:
    other = '[models.other]\nbaselines = "kept"\n' + MANIFEST.replace("own", "other")
    Path("shards.toml").write_text(MANIFEST + other)
    both = [own(1.0), own(1.0, subject="other:L01")]
    fake(monkeypatch, Runs(both, both))
    says("calibrate", "--runs=2")
    assert [one.subject for one in read(open_storage(), HERE)] == ["own:L01"]
    assert [one.subject for one in read(open_storage("kept"), HERE)] == ["other:L01"]
    fake(monkeypatch, Runs(both, both))
    says("calibrate", "--runs=2", "--benchmark-storage=file://all")
    assert len(read(open_storage("all"), HERE)) == 2


@pytest.mark.parametrize(
    ("runs", "sentence"),
    [
        (Runs(code=4), "Run 1 timed nothing (exit code 4); see why with: pytest -m bench"),
        (Runs([own(1.0)], code=2), "Run 1 timed nothing (exit code 2)"),
        (Runs([own(1.0)]), "Run 2 timed nothing (exit code 0)"),
        (Runs([]), "Run 1 timed nothing (exit code 0)"),
        (Runs([own(1.0)], [own(1.0, what="load")]), "No benchmark was in two runs of the same"),
    ],
    ids=["usage", "interrupted", "second", "foreign", "different"],
)
def test_nothing_to_learn_from(
    runs: Runs, sentence: str, monkeypatch: pytest.MonkeyPatch, says: Says
) -> None:
    fake(monkeypatch, runs)
    (said,) = says("calibrate", "--runs=1", code=1)
    assert "--runs=1: noise is what runs differ by; give 2 or more" in said
    assert says("calibrate", "--runs=2", code=1)[-1].startswith(f"pytest-ane: {sentence}")
    assert not list(Path.cwd().rglob("*.calibration"))


@pytest.mark.parametrize(
    ("option", "sentence"),
    [
        ("--benchmark-storage=http://x", "--benchmark-storage=http://x is no folder"),
        ("--benchmark-storage=shards.toml/x", "shards.toml/x cannot be written ("),
        ("--ane-manifest=none.toml", "none.toml does not exist"),
    ],
)
def test_where_noise_is_kept_is_looked_at_before_an_hour_of_runs(
    option: str, sentence: str, monkeypatch: pytest.MonkeyPatch, says: Says
) -> None:
    runs = fake(monkeypatch, Runs([own(1.0)], [own(1.0)]))
    (said,) = says("calibrate", option, code=1)
    assert said.startswith(f"pytest-ane: {sentence}")
    assert not runs.calls


def test_a_device_is_something_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, says: Says, as_json: AsJson
) -> None:
    device = devices.Device(name="this machine", bandwidth=37.5, peak=0.09, sources=("by numpy",))
    monkeypatch.setattr(calibrate, "calibrate_device", lambda say: device)
    runs = fake(monkeypatch, Runs())
    assert says("calibrate", "--device", f"--ane-cache={tmp_path / 'cache'}") == [
        "this machine: 37.5 GB/s, 0.09 TFLOP/s",
        "by numpy",
        f"stored in {tmp_path / 'cache' / 'device.toml'}",
    ]
    found = as_json("calibrate", "--device", f"--cache={tmp_path / 'cache'}")
    assert found["device"]["bandwidth"] == 37.5
    assert not runs.calls


@pytest.mark.slow
def test_real_runs(tmp_path: Path) -> None:
    save_conv(tmp_path / "some.mlpackage")
    (tmp_path / "test_own.py").write_text(BENCHMARK)
    command = [sys.executable, "-m", "pytest_ane.cli", "calibrate", "--runs=2", "-k=test_own"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("run 1 of 2: 1 benchmarks, ")
    (noise,) = read(open_storage(), HERE)
    assert noise.subject == "own:L01"
    assert noise.runs == 2
