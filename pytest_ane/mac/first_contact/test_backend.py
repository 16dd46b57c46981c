"""The backend: Ctrl-C, a shard's gates on ANE and CPU, evidence, four processes, arithmetic."""

from __future__ import annotations

import shutil
import signal
import subprocess
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter
from typing import Any

import pytest

from pytest_ane import __version__
from pytest_ane.mac._experiments import EXPERIMENTS, record, to_csv
from pytest_ane.mac.first_contact import Found, Kit
from pytest_ane.mlprogram.atomic import write_atomically
from pytest_ane.report.run import Row, read_run

_SLOWEST_INTERRUPT = 5.0
"""Seconds after Ctrl-C."""
_PATIENCE = 60
_COMPUTING = ("fidelity", "behaviour")
_MEASURED = (*_COMPUTING, "placement")
_LOADING = "import sys; from pytest_ane.mac.first_contact.test_backend import load_for_ever as load"


def load_for_ever(package: str, cache: str, replay: str) -> None:
    """Load with the backend until Ctrl-C; a line says that it begins."""
    from pytest_ane.backends import CoreMLBackend
    from pytest_ane.mac.testing import Replayer
    from pytest_ane.make import Cache

    # A shell lets what it starts with `&` ignore Ctrl-C; a run at a terminal does not.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    with ExitStack() as stack:
        if replay:
            stack.enter_context(Replayer(replay))
        backend = CoreMLBackend(Cache(Path(cache), notify=lambda text: None), "CPU_ONLY")
        backend.load(Path(package))
        print("loading", flush=True)
        while True:
            backend.load(Path(package))


def test_interrupt(kit: Kit, found: Found) -> None:
    """Ctrl-C during a load ends a run within 5 s."""
    arguments = (str(kit.package("conv-iOS18")), str(kit.work / "cache"), kit.setup.replay)
    started = subprocess.Popen(
        [sys.executable, "-c", f"{_LOADING}; load(*sys.argv[1:])", *arguments],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert started.stdout
    assert started.stdout.readline() == "loading\n", started.communicate()[1]
    pressed = perf_counter()
    started.send_signal(signal.SIGINT)
    try:
        started.communicate(timeout=_PATIENCE)
    except subprocess.TimeoutExpired:
        started.kill()
        started.communicate()
    seconds = perf_counter() - pressed
    found(f"ended {seconds:.1f} s after Ctrl-C, exit code {started.returncode}")
    assert seconds <= _SLOWEST_INTERRUPT, "Then whoever stops a run waits, or kills it."


@dataclass(frozen=True)
class GateRun:
    """A run of the gates: its verdicts as the report has them, and what evidence it recorded."""

    verdicts: Sequence[Row]
    recorded: list[str]
    text: str

    @property
    def answers(self) -> bool:
        """Whether every gate came to a verdict."""
        statuses = [verdict.status for verdict in self.verdicts]
        return bool(statuses) and "unproven" not in statuses

    @property
    def figures(self) -> dict[str, Any]:
        """Of the gates that compute: the ANE's plan and the CPU's differ anyway."""
        return {
            f"{verdict.gate} {figure['name']}": figure["value"]
            for verdict in self.verdicts
            if verdict.gate in _COMPUTING and verdict.data is not None
            for figure in verdict.data["figures"]
        }


def _gates(kit: Kit, units: str, *more: str) -> GateRun:
    setup, evidence = kit.setup, kit.work / "evidence"
    shutil.rmtree(evidence, ignore_errors=True)
    if setup.shard:
        more += (f"--ane-shards={setup.shard}",)
        more += (f"--ane-manifest={setup.manifest}",) if setup.manifest else ()
    else:
        more += (f"--ane-package={kit.package('conv-iOS18')}",)
    if setup.replay:
        more += ("-p", "pytest_ane.mac.testing", f"--ane-replay={setup.replay}")
    started = perf_counter()
    with TemporaryDirectory() as folder:
        report = Path(folder, "run.jsonl")
        done = subprocess.run(
            [
                sys.executable, "-m", "pytest", "-m", "gate", "-p", "no:cacheprovider", "-q",
                "--ane-backend=coreml", f"--ane-compute-units={units}", f"--ane-report={report}",
                f"--ane-cache={kit.work / 'gates'}", f"--ane-evidence={evidence}", *more,
            ],
            stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace",
            check=False,
        )  # fmt: skip
        known = read_run(report).rows if report.exists() else ()
    said = (done.stdout + done.stderr)[-300:]
    lines = [f"{v.gate} {v.status}, {v.summary}" for v in known] or [said]
    recorded = [path.name for path in sorted(evidence.rglob("*.json"))]
    return GateRun(known, recorded, f"{' | '.join(lines)} ({perf_counter() - started:.1f} s)")


@pytest.fixture(scope="module")
def on_ane(kit: Kit) -> GateRun:
    """The gates where the ANE is asked for; what they measured is recorded."""
    return _gates(kit, "CPU_AND_NE", "--ane-record=all", "--ane-record-force")


@pytest.fixture(scope="module")
def on_cpu(kit: Kit) -> GateRun:
    """The same on the CPU alone."""
    return _gates(kit, "CPU_ONLY")


def test_gates(kit: Kit, shard: str, request: pytest.FixtureRequest, found: Found) -> None:
    """The gates of a shard reach a verdict, on the ANE where there is one and on the CPU."""
    runs = [request.getfixturevalue("on_cpu")]
    if not kit.no_ane:
        runs.insert(0, request.getfixturevalue("on_ane"))
    found("; on the CPU: ".join(run.text for run in runs))
    assert all(run.answers for run in runs), f"Then gates of {shard} are worth nothing on this Mac."


def test_units_differ(kit: Kit, shard: str, request: pytest.FixtureRequest, found: Found) -> None:
    """The ANE computes otherwise than the CPU."""
    if kit.no_ane:
        pytest.skip(f"this is {kit.no_ane}: the gates run on the CPU alone")
    ane, cpu = (request.getfixturevalue(name).figures for name in ("on_ane", "on_cpu"))
    shared = sorted(ane.keys() & cpu.keys())
    differ = [f"{key} {ane[key]} and {cpu[key]}" for key in shared if ane[key] != cpu[key]]
    found("; ".join(differ[:8]) or f"{shard} has the same {len(shared)} figures on both")
    assert differ, "Then the ANE may not have computed at all, whatever the plan says."


def test_evidence(kit: Kit, shard: str, on_ane: GateRun, found: Found) -> None:
    """Evidence of the ANE is recorded where there is one, and nowhere else."""
    assert on_ane.verdicts, f"No gate of {shard} ran: {on_ane.text}"
    names = [name for name in on_ane.recorded if name.split(".")[-2] in _MEASURED]
    found(f"recorded: {', '.join(names) or 'nothing of the ANE'}")
    assert bool(names) is not bool(kit.no_ane), (
        "Then evidence claims an ANE that was not there, or cannot be recorded at all."
    )


def test_workers(kit: Kit, shard: str, found: Found) -> None:
    """Four processes use one ANE at once."""
    if kit.no_ane:
        pytest.skip(f"this is {kit.no_ane}")
    run = _gates(kit, kit.units, "-n", "4")
    found(run.text)
    assert run.answers, f"Then gates of {shard} run with -n on no Mac."


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_arithmetic(kit: Kit, name: str, found: Found) -> None:
    """A program of one operation is large enough for the ANE, and its rows are recorded."""
    if kit.no_ane:
        pytest.skip(f"this is {kit.no_ane}, without an ANE to ask")
    rows = record(EXPERIMENTS[name](), kit.machine, kit.device)
    comment = (
        f"Outputs of the ANE, recorded by pytest-ane {__version__} with coremltools "
        f"{version('coremltools')} on {kit.machine}, {kit.machine.compiler}."
    )
    folder = kit.folder / "arithmetic"
    folder.mkdir(exist_ok=True)
    write_atomically(folder / f"{name}.csv", to_csv(rows, comment))
    found(", ".join(filter(None, (f"{len(rows)} rows", rows[0].note))))
