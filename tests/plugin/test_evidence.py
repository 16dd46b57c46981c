"""Evidence recorded on one machine and verified on another, `--ane-evidence` and `--ane-rehash`."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import pytest

from pytest_ane.backends.coreml.machine import is_replaced
from pytest_ane.mac._replay import Replayer
from pytest_ane.mac._script import VIRTUAL, DeviceRule, Script
from pytest_ane.records.record import Record, pretty, sealed
from tests.plugin.conftest import Project
from tests.records.signing import PrivateKey, envelope, new_key, stated, write_json, write_public

CORE_ML = "--ane-backend=coreml"
REQUIRED = """\
[models.own.policy.placement]
require = "plan"

[models.own.policy.fidelity]
require = "device"
"""
PLACEMENT, FIDELITY = "own/good.placement.json", "own/good.fidelity.json"


@dataclass(frozen=True)
class Recorded:
    """A project whose evidence was recorded, as another machine has it."""

    project: Project

    def manifest(self, more: str = "") -> None:
        held = self.project.workshop.packages["float32"]
        own = f'[models.own.shard.good]\nartifact = "good.mlpackage"\nreference = "{held}"\n'
        self.project.manifest(own + REQUIRED + more)

    def verify(self, *options: str) -> pytest.RunResult:
        return self.project.gate("--ane-backend=cpu", *options)

    def sign(self, key: PrivateKey) -> None:
        for name in (PLACEMENT, FIDELITY):
            file = self.path(name)
            write_json(
                file.with_name(f"{file.name}.dsse.json"), envelope(key, stated(file.read_bytes()))
            )

    def path(self, name: str) -> Path:
        return self.project.path / "evidence" / name

    def edit(self, name: str, change: Callable[[Any], None], *, seal: bool = True) -> None:
        data = json.loads(self.path(name).read_text())
        change(data)
        self.path(name).write_text(pretty(sealed(data) if seal else data) + "\n")


@pytest.fixture
def recorded(project: Project, genuine: None) -> Recorded:
    """Evidence that conv runs on the ANE and computes what it should."""
    found = Recorded(project)
    shutil.copytree(project.workshop.packages["good"], project.path / "good.mlpackage")
    found.manifest()
    with Replayer(Script()):
        project.gate(CORE_ML, "--ane-record").assert_outcomes(passed=3, deselected=1)
    return found


def red(result: pytest.RunResult, *lines: str, failed: int = 2) -> None:
    result.assert_outcomes(passed=3 - failed, failed=failed, deselected=1)
    result.stdout.fnmatch_lines(list(lines))


@pytest.mark.drawn
@pytest.mark.slow
def test_what_was_recorded_passes_without_core_ml(
    recorded: Recorded, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "500")
    result = recorded.verify("-rA", "-v")
    result.assert_outcomes(passed=3, deselected=1)
    today = f"{datetime.now(timezone.utc):%Y-%m-%d}"
    where = "Apple M4 Max, macOS 26.1, CPU_AND_NE"
    result.stdout.fnmatch_lines(
        [
            "ane: *backend cpu * placement by recorded plans * seed 0*",
            "compute ops that the plan places elsewhere than predicted:",
            "passed   own:good  placement   on the ANE (Core ML's plan) · *"
            f"recorded {today}, {where}",
            f"evidence: 2 verified ({where})",
        ]
    )


def _missing(recorded: Recorded) -> None:
    recorded.path(PLACEMENT).unlink()


def _of_other_bytes(recorded: Recorded) -> None:
    (weights,) = (recorded.project.path / "good.mlpackage").rglob("*.bin")
    weights.write_bytes(weights.read_bytes()[:-1] + b"!")


def _set_cosine(value: float) -> Callable[[Any], None]:
    def change(data: Any) -> None:
        data["measurement"]["comparisons"][0]["cosines"] = [value]

    return change


def _edited(recorded: Recorded) -> None:
    recorded.edit(FIDELITY, _set_cosine(1.0), seal=False)


def _of_a_smaller_plan(recorded: Recorded) -> None:
    def fewer(data: Any) -> None:
        function = data["measurement"]["functions"][0]
        function["operations"] = [one for one in function["operations"] if one["op"] != "conv"]

    recorded.edit(PLACEMENT, fewer)


@pytest.mark.drawn
@pytest.mark.parametrize(
    ("spoil", "gates", "says"),
    [
        (_missing, "placement", "is missing; on a Mac, run: pytest --ane-shards=own:good *"),
        (_of_other_bytes, "placement fidelity", "is of other bytes: *"),
        (_edited, "fidelity", "was edited after it was recorded*"),
        (_of_a_smaller_plan, "placement", "holds a plan of 0 conv, *"),
    ],
)
def test_evidence_that_proves_nothing_is_red(
    recorded: Recorded, spoil: Callable[[Recorded], None], gates: str, says: str
) -> None:
    """Each sentence is the business of `tests/records/test_verify.py`."""
    spoil(recorded)
    result = recorded.verify()
    red(result, f"  - *{says}", failed=len(gates.split()))
    for gate in gates.split():
        result.stdout.fnmatch_lines([f"UNPROVEN own:good  {gate} *"])


def test_without_an_ane_of_its_own_a_mac_verifies(recorded: Recorded) -> None:
    with Replayer(Script(VIRTUAL)):
        result = recorded.project.gate(CORE_ML)
    result.assert_outcomes(passed=3, deselected=1)
    result.stdout.fnmatch_lines(["evidence: 2 verified (*"])


@pytest.mark.drawn
@pytest.mark.slow
def test_a_replay_is_no_device_live_or_recorded(
    recorded: Recorded, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pytest_ane.backends.coreml.backend.is_replaced", is_replaced)
    with Replayer(Script()):
        live = recorded.project.gate(CORE_ML)
        recorded.project.gate(CORE_ML, "--ane-record=all")
    red(live, "  - *the answers are replayed, so no device was asked*")
    red(recorded.verify(), "  - *was answered by a replay, *")


def test_nothing_is_run_where_evidence_answers(
    recorded: Recorded, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no(*_: object) -> None:
        raise AssertionError("the executor was asked")

    monkeypatch.setattr("pytest_ane.backends.cpu.CpuRunner", no)
    monkeypatch.setattr("pytest_ane.project.project.package_cases", no)
    recorded.verify().assert_outcomes(passed=3, deselected=1)


def test_a_plan_of_the_cpu_fails(recorded: Recorded) -> None:
    with Replayer(Script(devices=(DeviceRule("CPU", op="conv"),))):
        recorded.project.gate(CORE_ML, "--ane-record=all", "-k", "placement")
    red(recorded.verify(), "own:good: placement failed", failed=1)


def test_another_threshold_is_applied_to_the_numbers(recorded: Recorded) -> None:
    recorded.manifest("min-cosine = 1.0\n")
    recorded.edit(FIDELITY, _set_cosine(0.98))
    red(recorded.verify(), "own:good: fidelity failed", failed=1)


@pytest.mark.slow
def test_signatures(recorded: Recorded) -> None:
    lab, other = new_key(), new_key("ed25519")
    write_public(lab, recorded.project.path / "lab.pub")
    recorded.manifest('[models.own.policy.evidence]\nsigners = ["lab.pub"]\n')
    red(recorded.verify(), "  - *is not signed*")
    recorded.sign(other)
    red(recorded.verify(), "  - *is signed by none of *")
    recorded.sign(lab)
    recorded.verify().assert_outcomes(passed=3, deselected=1)
    recorded.edit(FIDELITY, _set_cosine(1.0))
    red(recorded.verify(), "  - *is not what was signed*", failed=1)


@pytest.mark.drawn
@pytest.mark.slow
def test_a_recorded_plan_goes_before_a_forecast(recorded: Recorded) -> None:
    recorded.project.replace('"plan"', '"forecast"')
    recorded.verify("-k", "placement").stdout.fnmatch_lines(["evidence: 1 verified (*"])
    recorded.path(PLACEMENT).write_text("{}")
    result = recorded.verify("-k", "placement")
    result.assert_outcomes(passed=1, deselected=3)
    result.stdout.fnmatch_lines(["warned * placement   off the ANE (*", "evidence: 1 not used"])


@pytest.mark.drawn
@pytest.mark.slow
def test_rehash_reads_what_only_seems_unchanged(
    recorded: Recorded, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The list of digests is trusted; whoever could have changed it asks for a fresh look."""
    manifest = recorded.project.path / "good.mlpackage" / "Manifest.json"
    stat = manifest.stat()
    os.utime(manifest, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    monkeypatch.setattr("pytest_ane.mlprogram.digests._RACY", -(10**12))
    recorded.verify("--ane-cache=cache").assert_outcomes(passed=3, deselected=1)
    memory = recorded.project.path / "cache" / "digests" / "files.jsonl"
    lines = [json.loads(line) for line in memory.read_text().splitlines() if line]
    wrong = [[path, state, "0" * 64] for path, state, _ in lines]
    memory.write_text("\n".join(map(json.dumps, wrong)))
    red(recorded.verify("--ane-cache=cache"), "  - *is of other bytes: *")
    recorded.verify("--ane-cache=cache", "--ane-rehash").assert_outcomes(passed=3, deselected=1)


@pytest.mark.usefixtures("genuine")
@pytest.mark.slow
def test_behaviour_is_verified_for_the_whole_model(project: Project) -> None:
    policy = "[models.mini.policy.behaviour]\n"
    project.llama().replace(policy, f'{policy}require = "device"\n')
    with Replayer(Script()):
        project.gate(CORE_ML, "--ane-record", "-k", "behaviour")
    project.gate("--ane-backend=cpu", "-k", "behaviour").assert_outcomes(passed=1, deselected=12)
    file = project.path / "evidence" / "mini" / "behaviour.json"
    assert Record.from_json(file.read_bytes()).subject == "mini"
    file.unlink()
    result = project.gate("--ane-backend=cpu", "-k", "behaviour")
    result.assert_outcomes(failed=1, deselected=12)
    result.stdout.fnmatch_lines(["mini: behaviour unproven", "*behaviour.json is missing*"])
