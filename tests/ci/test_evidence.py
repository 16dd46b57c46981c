"""Recorded by the `record` job on a replayed Mac, verified by the `verify` job on a fresh clone."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from pytest_ane.mac._script import DeviceRule, Script
from pytest_ane.records.record import pretty, sealed
from tests.ci.repository import AS_IT_IS, CONTEXT, calls, clone, commit, git, machine
from tests.ci.runner import Done, Runner
from tests.plugin.projects import make_packages
from tests.records.signing import envelope, new_key, stated, write_json, write_public

MANIFEST = """\
[models.own.shard.good]
artifact = "good.mlpackage"
reference = "reference.mlpackage"

[models.own.policy.placement]
require = "plan"

[models.own.policy.fidelity]
require = "device"
"""
PYTHON = Path(sys.executable).parent
GATES = ("compression", "fidelity", "placement")


@dataclass(frozen=True)
class Mac:
    """What a run of the job `record` left behind.

    Attributes:
        repository: its checkout, with the evidence that is kept as an artifact.
        origin: where it pushes to.
        done: the steps that ran.
        used: the actions.
        calls: of gh and cosign.
    """

    repository: Path
    origin: Path
    done: list[Done]
    used: list[str]
    calls: list[str]


GENUINE = """\
from pytest_ane.backends.coreml import backend

backend.is_replaced = lambda: False
"""
"""Lets a replayed Mac pass for a Mac."""


def record(folder: Path, packages: dict[str, Path], script: Script) -> Mac:
    """Run the jobs that record and sign, with CI=true, on a Mac that is played."""
    repository, origin = clone(folder, {"shards.toml": MANIFEST, ".gitignore": ".*\n*.xml\n"})
    shutil.copytree(packages["good"], repository / "good.mlpackage")
    shutil.copytree(packages["float32"], repository / "reference.mlpackage")
    commit(repository)
    script.save(folder / "mac")
    replay = f"-p pytest_ane.mac.testing -p genuine --ane-replay={folder / 'mac'}"
    (folder / "genuine.py").write_text(GENUINE)
    runner = machine(folder, repository, PYTHON)
    runner.env = {
        **runner.env, "CI": "true", "PYTEST_ADDOPTS": replay, "PYTHONPATH": str(folder)
    }  # fmt: skip
    done = runner.job("record", AS_IT_IS | {"cache": ".ane-cache"})
    if all(step.code == 0 for step in done):
        signing = folder / "signing"
        git(folder, "clone", "--quiet", str(origin), str(signing))
        shutil.copytree(repository / ".runner/new", signing, dirs_exist_ok=True)
        done += machine(folder, signing, PYTHON).job("sign", {})
    return Mac(repository, origin, done, runner.used, calls(folder))


@pytest.fixture(scope="module")
def packages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return make_packages(tmp_path_factory.mktemp("packages"))


@pytest.fixture(scope="module")
def mac(tmp_path_factory: pytest.TempPathFactory, packages: dict[str, Path]) -> Mac:
    return record(tmp_path_factory.mktemp("mac"), packages, Script())


@dataclass(frozen=True)
class Checkout:
    """Another machine's checkout of what the Mac proposed."""

    path: Path

    def file(self, gate: str) -> Path:
        return self.path / f"evidence/own/good.{gate}.json"

    def edit(self, gate: str, change: Callable[[Any], object], *, seal: bool = True) -> None:
        data = json.loads(self.file(gate).read_text())
        change(data)
        self.file(gate).write_text(pretty(sealed(data) if seal else data) + "\n")

    def manifest(self, text: str) -> None:
        with (self.path / "shards.toml").open("a") as file:
            file.write(f"\n{text}\n")

    def byte(self) -> None:
        (weights,) = (self.path / "good.mlpackage").rglob("*.bin")
        data = bytearray(weights.read_bytes())
        data[-1] ^= 1
        weights.write_bytes(data)

    def signers(self) -> None:
        """The policy names a key."""
        write_public(new_key(), self.path / "lab.pub")
        self.manifest('[models.own.policy.evidence]\nsigners = ["lab.pub"]')

    def signed(self) -> None:
        """By another key than the policy's."""
        self.signers()
        for gate in GATES:
            file = self.file(gate)
            made = envelope(new_key(), stated(file.read_bytes()))
            write_json(file.with_name(f"{file.name}.dsse.json"), made)

    def verify(self, **inputs: str) -> tuple[Runner, Done]:
        """Run the required check, where there is no Core ML."""
        env = {"CI": "true", "PYTEST_ADDOPTS": "--ane-backend=cpu"}
        runner = Runner(self.path, CONTEXT | {"env.EVIDENCE": ""}, path=(PYTHON,), env=env)
        (done,) = runner.job("measure", AS_IT_IS | inputs)
        return runner, done


@pytest.fixture
def checkout(tmp_path: Path, mac: Mac) -> Checkout:
    git(tmp_path, "clone", "--quiet", "--branch=evidence/42-1", str(mac.origin), "checkout")
    return Checkout(tmp_path / "checkout")


@pytest.mark.heavy
def test_the_mac_records_and_proposes(mac: Mac) -> None:
    assert [(step.name, step.code) for step in mac.done] == [
        ("Gates", 0), ("Find what is new", 0), ("Find what is new", 0), ("Propose", 0),
    ], mac.done  # fmt: skip
    assert "backend coreml · Apple M4 Max" in mac.done[0].output
    assert "evidence: 3 recorded" in mac.done[0].output
    changed = git(mac.origin, "diff", "--name-only", "main", "evidence/42-1")
    assert changed.split() == [f"evidence/own/good.{gate}.json" for gate in GATES]
    assert [call.split()[:3] for call in mac.calls] == [["gh", "pr", "create"]]


@pytest.mark.heavy
def test_green(checkout: Checkout) -> None:
    runner, done = checkout.verify()
    assert done.code == 0, done.output
    assert "::error" not in done.output
    assert "::notice title=ane gates::ane gates: 3 passed (ane: all " in done.output
    assert "3 passed" in runner.summary
    placement = properties(checkout)["placement"]
    assert (placement["ane.conv_ane"], placement["ane.unassigned_ops"]) == ("1", "0")
    assert placement["ane.ane_ops"] == placement["ane.compute_ops"]
    assert placement["ane.provenance.chip"] == "Apple M4 Max"


BOTH = ("fidelity", "placement")


@pytest.mark.heavy
@pytest.mark.parametrize(
    ("spoil", "gates", "says"),
    [
        (
            lambda c: c.file("placement").unlink(),
            ("placement",),
            "good.placement.json is missing; on a Mac, run: pytest --ane-shards=own:good -m gate "
            "--ane-record=missing",
        ),
        (Checkout.byte, BOTH, "is of other bytes: good/Data/"),
        (
            lambda c: c.edit("fidelity", lambda p: p["environment"].update(chip="A"), seal=False),
            ("fidelity",),
            "was edited after it was recorded",
        ),
        (
            lambda c: c.manifest('[models.own.policy.evidence]\nchips = ["Apple M9"]'),
            BOTH,
            "was recorded on Apple M4 Max, and the policy takes 'Apple M9'",
        ),
        (Checkout.signers, BOTH, "is not signed, and the policy wants a signature by"),
        (Checkout.signed, BOTH, "is signed by none of"),
    ],
    ids=["missing", "stale", "edited", "chip", "unsigned", "signer"],
)
def test_red(
    spoil: Callable[[Checkout], object], gates: tuple[str, ...], says: str, checkout: Checkout
) -> None:
    spoil(checkout)
    unproven(checkout, gates, says)


@pytest.mark.heavy
def test_an_operation_on_the_cpu(tmp_path: Path, packages: dict[str, Path]) -> None:
    """The Mac's own gate is red, so nothing is proposed; nor does what it kept pass elsewhere."""
    made = record(tmp_path, packages, Script(devices=(DeviceRule("CPU", op="conv"),)))
    assert [(step.name, step.code) for step in made.done] == [
        ("Gates", 1), ("Find what is new", 0)
    ]  # fmt: skip
    assert [name.partition("@")[0] for name in made.used[-2:]] == ["actions/upload-artifact"] * 2
    assert made.calls == []
    says = "runs on the CPU instead of the ANE"
    unproven(Checkout(made.repository), ("placement",), says, status="failed")


def unproven(
    checkout: Checkout, gates: tuple[str, ...], says: str, *, status: str = "unproven"
) -> None:
    """The sentence is in the annotation, the summary and the report, of these gates only."""
    (checkout.path / ".runner/summary.md").unlink(missing_ok=True)
    runner, done = checkout.verify(arguments="")
    assert done.code == 1, done.output
    errors = [line for line in done.output.splitlines() if line.startswith("::error ")]
    reports = properties(checkout)
    assert len(errors) == len(gates), done.output
    for gate, error in zip(gates, sorted(errors), strict=True):
        at = f"::error file=shards.toml,line=1,title=own%3Agood {gate} {status}::"
        assert error.startswith(at), done.output
        assert says in error.replace("%25", "%")
        assert reports[gate]["ane.status"] == status
        assert says in reports[gate]["ane.reasons"]
        assert f"- **own\\:good** {gate}: " in runner.summary
    assert says in runner.summary.replace("\\", "")
    assert reports["compression"]["ane.status"] == "passed"


def properties(checkout: Checkout) -> dict[str, dict[str, str]]:
    """The properties of every gate in JUnit's report."""
    cases = ElementTree.parse(checkout.path / "gates.xml").iter("testcase")
    found = [{p.get("name", ""): p.get("value", "") for p in c.iter("property")} for c in cases]
    return {case["ane.gate"]: case for case in found}
