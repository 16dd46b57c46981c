"""Evidence recorded on one machine and verified on another, `--ane-evidence` and `--ane-rehash`."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
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


@pytest.fixture(autouse=True)
def _not_in_ci(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CI", raising=False)


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


def test_what_was_recorded_passes_without_core_ml(recorded: Recorded) -> None:
    result = recorded.verify()
    result.assert_outcomes(passed=3, deselected=1)
    result.stdout.fnmatch_lines(
        [
            "ane: *backend cpu * placement by recorded plans * seed 0*",
            "passed   own:good  placement   plan: *",
            "evidence: 2 verified (Apple M4 Max, macOS 26.1, CPU_AND_NE)",
        ]
    )


def test_without_an_ane_of_its_own_a_mac_verifies(recorded: Recorded) -> None:
    with Replayer(Script(VIRTUAL)):
        result = recorded.project.gate(CORE_ML)
    result.assert_outcomes(passed=3, deselected=1)
    result.stdout.fnmatch_lines(["evidence: 2 verified (Apple M4 Max, macOS 26.1, CPU_AND_NE)"])


@pytest.mark.parametrize("change", [{"virtual": "yes"}, {"translated": "yes"}, {"ane_cores": "0"}])
def test_evidence_of_a_machine_without_an_ane_is_red(
    recorded: Recorded, change: dict[str, str]
) -> None:
    for name in (PLACEMENT, FIDELITY):
        recorded.edit(name, lambda data: data["environment"].update(change))
    red(recorded.verify(), "*which proves nothing of the ANE*")


def test_the_verdict_says_where_it_is_from(
    recorded: Recorded, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "250")
    today = f"{datetime.now(timezone.utc):%Y-%m-%d}"
    where = f"recorded {today}, Apple M4 Max, macOS 26.1, CPU_AND_NE"
    recorded.verify().stdout.fnmatch_lines([f"passed   own:good  placement   plan: * {where}"])


def test_a_recorded_plan_stands_beside_what_is_predicted(recorded: Recorded) -> None:
    """The replayed Mac has a convolution on the ANE that is too little work."""
    result = recorded.verify("-k", "placement", "-rA")
    result.assert_outcomes(passed=1, deselected=3)
    result.stdout.fnmatch_lines(
        [
            "compute ops that the plan places elsewhere than predicted:",
            "conv  projection  ANE   CPU *",
        ]
    )


def test_a_replay_is_no_device_live_or_recorded(
    recorded: Recorded, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pytest_ane.backends.coreml.backend.is_replaced", is_replaced)
    with Replayer(Script()):
        live = recorded.project.gate(CORE_ML)
        recorded.project.gate(CORE_ML, "--ane-record=all")
    reason = "policy.placement.require asks for * the answers are replayed, so no device was asked*"
    red(live, f"  - {reason}")
    red(
        recorded.verify(),
        "  - *good.placement.json was answered by a replay, and no device was asked; on a Mac*",
    )


def test_nothing_is_run_where_evidence_answers(
    recorded: Recorded, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no(*_: object) -> None:
        raise AssertionError("the executor was asked")

    monkeypatch.setattr("pytest_ane.backends.cpu.CpuRunner", no)
    monkeypatch.setattr("pytest_ane.project.project.package_cases", no)
    recorded.verify().assert_outcomes(passed=3, deselected=1)


def test_missing(recorded: Recorded) -> None:
    recorded.path(PLACEMENT).unlink()
    red(
        recorded.verify(),
        "own:good: placement unproven",
        "  - *good.placement.json is missing; on a Mac, run: pytest --ane-shards=own:good -m gate "
        "--ane-record=missing",
        "UNPROVEN own:good  placement   *good.placement.json is missing*",
        failed=1,
    )


def test_one_byte_of_the_package(recorded: Recorded) -> None:
    (weights,) = (recorded.project.path / "good.mlpackage").rglob("*.bin")
    data = bytearray(weights.read_bytes())
    data[-1] ^= 1
    weights.write_bytes(data)
    red(recorded.verify(), "  - *is of other bytes: good/Data/*weight.bin was *, now is *")


def test_one_number_of_the_evidence(recorded: Recorded) -> None:
    def better(data: Any) -> None:
        data["measurement"]["comparisons"][0]["cosines"] = [1.0]

    recorded.edit(FIDELITY, better, seal=False)
    red(recorded.verify(), "  - *good.fidelity.json was edited after it was recorded*", failed=1)


def test_operations_that_were_taken_out_of_a_plan_are_missed(recorded: Recorded) -> None:
    def fewer(data: Any) -> None:
        function = data["measurement"]["functions"][0]
        function["operations"] = [one for one in function["operations"] if one["op"] != "conv"]

    recorded.edit(PLACEMENT, fewer)
    red(
        recorded.verify(),
        "own:good: placement unproven",
        "  - *good.placement.json holds a plan of 0 conv, and the program has 1; on a Mac, *",
        failed=1,
    )


def test_a_plan_of_the_cpu_fails(recorded: Recorded) -> None:
    with Replayer(Script(devices=(DeviceRule("CPU", op="conv"),))):
        recorded.project.gate(CORE_ML, "--ane-record=all", "-k", "placement")
    red(
        recorded.verify(),
        "own:good: placement failed",
        "  - *runs on the CPU instead of the ANE",
        failed=1,
    )


def test_another_threshold_is_applied_to_the_numbers(recorded: Recorded) -> None:
    recorded.manifest("min-cosine = 1.0\n")

    def worse(data: Any) -> None:
        data["measurement"]["comparisons"][0]["cosines"] = [0.98]

    recorded.edit(FIDELITY, worse)
    red(recorded.verify(), "own:good: fidelity failed", "  - *below min-cosine = 1*", failed=1)


def test_another_question(recorded: Recorded) -> None:
    recorded.manifest('[models.own.probes]\nkinds = ["gaussian"]\nseed = 5\n')
    says = "  - *answers another question: probes.seed was 0, now is 5*"
    red(recorded.verify(), says, failed=1)


@pytest.mark.parametrize(
    ("policy", "says"),
    [
        ('chips = ["Apple M9"]', "was recorded on Apple M4 Max, and the policy takes 'Apple M9'"),
        ('os = ["macOS 27"]', "was recorded on macOS 26.1, and the policy takes 'macOS 27'"),
        ('compute-units = ["ALL"]', "was recorded with CPU_AND_NE, and the policy takes 'ALL'"),
    ],
)
def test_another_machine_than_the_policy_takes(recorded: Recorded, policy: str, says: str) -> None:
    recorded.manifest(f"[models.own.policy.evidence]\n{policy}\n")
    red(recorded.verify(), f"  - *{says}; on a Mac, run: *")


def test_an_age_the_policy_does_not_take(recorded: Recorded) -> None:
    recorded.manifest('[models.own.policy.evidence]\nmax-age = "90 days"\n')
    recorded.verify().assert_outcomes(passed=3, deselected=1)
    old = datetime.now(timezone.utc) - timedelta(days=120)

    def age(data: Any) -> None:
        data["time"] = f"{old:%Y-%m-%dT%H:%M:%SZ}"

    recorded.edit(PLACEMENT, age)
    red(recorded.verify(), "  - *was recorded 120 days ago*90 days at most*", failed=1)


@pytest.mark.slow
def test_signatures(recorded: Recorded) -> None:
    lab, other = new_key(), new_key("ed25519")
    write_public(lab, recorded.project.path / "lab.pub")
    recorded.manifest('[models.own.policy.evidence]\nsigners = ["lab.pub"]\n')
    red(recorded.verify(), "  - *is not signed, and the policy wants a signature by *lab.pub*")
    recorded.sign(other)
    red(recorded.verify(), "  - *is signed by none of *lab.pub*")
    recorded.sign(lab)
    recorded.verify().assert_outcomes(passed=3, deselected=1)

    def better(data: Any) -> None:
        data["measurement"]["comparisons"][0]["cosines"] = [1.0]

    recorded.edit(FIDELITY, better)
    red(recorded.verify(), "  - *is not what was signed*", failed=1)


def test_allowed_it_is_still_called_unproven(recorded: Recorded) -> None:
    recorded.path(PLACEMENT).unlink()
    result = recorded.verify("--ane-unproven=allow")
    result.assert_outcomes(passed=3, deselected=1)
    result.stdout.fnmatch_lines(["unproven own:good  placement *is missing*"])


def test_a_recorded_plan_goes_before_a_forecast(recorded: Recorded) -> None:
    recorded.manifest()
    text = (recorded.project.path / "shards.toml").read_text()
    recorded.project.manifest(text.replace('"plan"', '"forecast"'))
    recorded.verify("-k", "placement").stdout.fnmatch_lines(
        ["ane: * placement by recorded plans and forecast *", "evidence: 1 verified (*"]
    )
    recorded.path(PLACEMENT).write_text("{}")
    result = recorded.verify("-k", "placement")
    result.assert_outcomes(passed=1, deselected=3)
    result.stdout.fnmatch_lines(
        [
            "passed * placement   forecast: *",
            "evidence: 1 not used",
            "not used own/good.placement.json",
            "  *is damaged*",
        ]
    )


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
    result = recorded.verify("--ane-cache=cache", "--ane-rehash")
    result.assert_outcomes(passed=3, deselected=1)


@pytest.mark.usefixtures("genuine")
@pytest.mark.slow
def test_behaviour_is_verified_for_the_whole_model(project: Project) -> None:
    project.llama()
    text = (project.path / "shards.toml").read_text()
    policy = "[models.mini.policy.behaviour]\n"
    project.manifest(text.replace(policy, f'{policy}require = "device"\n'))
    with Replayer(Script()):
        project.gate(CORE_ML, "--ane-record", "-k", "behaviour")
    result = project.gate("--ane-backend=cpu", "-k", "behaviour")
    result.assert_outcomes(passed=1, deselected=12)
    file = project.path / "evidence" / "mini" / "behaviour.json"
    assert Record.from_json(file.read_bytes()).subject == "mini"
    file.unlink()
    result = project.gate("--ane-backend=cpu", "-k", "behaviour")
    result.assert_outcomes(failed=1, deselected=12)
    result.stdout.fnmatch_lines(["mini: behaviour unproven", "*behaviour.json is missing*"])
