"""Evidence of several systems: the worst decides, and the others are named."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from pytest_ane.gates.placement.plans import Plan, PlannedFunction, PlannedOperation
from pytest_ane.gates.verdict import Finding
from pytest_ane.manifest import EvidencePolicy, Policy, Shard
from pytest_ane.mlprogram.errors import UnprovenError
from pytest_ane.records.record import Record
from pytest_ane.records.store import Store, signature, systems_of
from pytest_ane.records.verify import EvidenceFile, answers, combined, others, worst
from tests.records.test_verify import ASKED, FILES, FOUND, NOW

SYSTEMS = ("macOS 26", "macOS 27")
SHARD = Shard(model="m", id="L01", policy=Policy(evidence=EvidencePolicy(systems=SYSTEMS)))
Verified = Callable[[str], Record]


def recorded(system: str, *devices: str) -> Record:
    operations = tuple(
        PlannedOperation(f"y{i}", "conv", device)  # type: ignore[arg-type]
        for i, device in enumerate(devices or ("ANE",))
    )
    plan = Plan("coremltools", (PlannedFunction("main", operations),), compute_units="CPU_AND_NE")
    return replace(FOUND, environment={**FOUND.environment, "os": system}, measurement=plan)


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Store:
    monkeypatch.chdir(tmp_path)
    return Store(Path("evidence"))


@pytest.fixture
def verified(store: Store) -> Verified:
    def look(system: str) -> Record:
        file = EvidenceFile.at(store, "placement", SHARD, system)
        return file.verified(files=FILES, asked=ASKED, policy=EvidencePolicy(), now=NOW)

    return look


def test_where_each_system_is_kept(store: Store) -> None:
    here = store.folder / "m"
    assert store.path("placement", "m:L01", "macOS 27") == here / "L01.placement@macos-27.json"
    assert store.path("behaviour", "m", "macOS 26.1") == here / "behaviour@macos-26.1.json"
    paths = [store.write(recorded("macOS 27.0"), system) for system in ("", *SYSTEMS)]
    signature(paths[1], ".dsse.json").write_text("{}")
    store.write(replace(recorded("macOS 27.0"), subject="m:L01b"))
    assert store.all("placement", "m:L01") == paths
    assert store.read("placement", "m:L01", "macOS 27") == paths[2].read_bytes()


def test_what_needs_evidence_of_each() -> None:
    assert systems_of("placement", SHARD) == SYSTEMS
    assert systems_of("compression", SHARD) == ("",)  # The same on every system.
    assert systems_of("placement", Shard(model="m", id="L01")) == ("",)


def test_both_pass(store: Store, verified: Verified) -> None:
    store.write(recorded("macOS 26.7"), "macOS 26")
    store.write(recorded("macOS 27.0.1"), "macOS 27")
    verdict = combined(answers("placement", SHARD, verified))
    assert verdict.status == "passed"
    assert "macOS 26.7" in verdict.origin
    assert [f.reason for f in verdict.findings if "macOS" in f.reason] == ["macOS 27: passed"]


def test_the_one_that_fails_decides(store: Store, verified: Verified) -> None:
    store.write(recorded("macOS 26.7"), "macOS 26")
    store.write(recorded("macOS 27.0", "CPU"), "macOS 27")
    verdict = combined(answers("placement", SHARD, verified))
    assert verdict.status == "failed"
    assert "macOS 27.0" in verdict.origin
    assert Finding("note", "macOS 26: passed") in verdict.findings


def test_a_system_without_evidence_is_unproven(store: Store, verified: Verified) -> None:
    store.write(recorded("macOS 26.7"), "macOS 26")
    found = answers("placement", SHARD, verified)
    verdict = combined(found)
    assert verdict.status == "unproven"
    (reason,) = verdict.reasons
    assert reason.reason == "evidence/m/L01.placement@macos-27.json is missing"
    assert reason.remedy == (
        "on a Mac with macOS 27, run: pytest --ane-shards=m:L01 -m gate --ane-record=missing"
    )
    assert others(found) == (Finding("note", "macOS 26: passed"),)
    error = worst(found).error
    assert error is not None
    assert error.kind == "missing"


def test_findings_of_two_systems_are_not_counted_together(store: Store, verified: Verified) -> None:
    store.write(recorded("macOS 26.7", "CPU", "CPU"), "macOS 26")
    store.write(recorded("macOS 27.0", "CPU", "ANE"), "macOS 27")
    reasons = combined(answers("placement", SHARD, verified)).reasons
    kinds = {finding.kind for finding in reasons}
    assert len(reasons) == 3
    assert len(kinds) == 2
    assert sum(kind.endswith(" on macOS 27") for kind in kinds) == 1


@pytest.mark.parametrize("system", ["macOS 26.7", "macOS 270", "iOS 27.0"])
def test_evidence_in_the_place_of_another_system(
    store: Store, verified: Verified, system: str
) -> None:
    store.write(recorded(system), "macOS 27")
    with pytest.raises(UnprovenError, match="and stands in the place of macOS 27; on a Mac") as e:
        verified("macOS 27")
    assert e.value.kind == "os"
    assert f"was recorded on {system}, " in str(e.value)


def test_evidence_from_before_the_policy_named_systems(store: Store, verified: Verified) -> None:
    plain = store.write(recorded("macOS 26.7"))
    with pytest.raises(UnprovenError, match="rename it; else on a Mac with macOS 26, run: "):
        verified("macOS 26")
    plain.rename(store.path("placement", "m:L01", "macOS 26"))
    assert verified("macOS 26").environment["os"] == "macOS 26.7"
