"""Every way in which evidence proves nothing, each with its own sentence."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest

from pytest_ane.gates.placement.plans import Plan, PlannedFunction, PlannedOperation, Tally
from pytest_ane.manifest import EvidencePolicy, Model, Shard
from pytest_ane.mlprogram.errors import UnprovenError
from pytest_ane.records.record import Record, sealed
from pytest_ane.records.store import Store
from pytest_ane.records.verify import EvidenceFile, judge
from tests.records.signing import bundle, envelope, new_key, stated, write_json, write_public

NOW = datetime(2026, 11, 21, 16, 0, 0, tzinfo=timezone.utc)
FILES = {"L01/Manifest.json": "a" * 64, "L01/Data/weight.bin": "b" * 64}
ASKED = {"probes": {"seed": 0, "kinds": ["gaussian"]}, "reference": "float32"}
PLAN = Plan(
    "coremltools",
    (PlannedFunction("main", (PlannedOperation("y", "conv", "ANE"),)),),
    compute_units="CPU_AND_NE",
)
SHARD = Shard(model="m", id="L01")
DEVICE = {"virtual": "no", "translated": "no", "devices": "CPU, GPU, ANE", "ane_cores": "16"}
FOUND = Record(
    gate="placement",
    subject="m:L01",
    files=FILES,
    environment={
        "backend": "coreml",
        "chip": "Apple M4 Max",
        "os": "macOS 26.1",
        "compute_units": "CPU_AND_NE",
        **DEVICE,
    },
    asked=ASKED,
    time=NOW - timedelta(days=3),
    measurement=PLAN,
)
FILE = "evidence/m/L01.placement.json"
MISSING = "on a Mac, run: pytest --ane-shards=m:L01 -m gate --ane-record=missing"
STALE = "on a Mac, run: pytest --ane-shards=m:L01 -m gate --ane-record=stale"


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Store:
    """One record, in the folder that sentences are relative to."""
    monkeypatch.chdir(tmp_path)
    kept = Store(tmp_path / "evidence")
    kept.write(FOUND)
    return kept


def look(store: Store, policy: EvidencePolicy | None = None, **changes: Any) -> Record:
    given = {"files": FILES, "asked": ASKED, "now": NOW, **changes}
    return EvidenceFile.at(store, "placement", SHARD).verified(
        policy=policy or EvidencePolicy(), **given
    )


def refusal(store: Store, policy: EvidencePolicy | None = None, **changes: Any) -> tuple[str, str]:
    with pytest.raises(UnprovenError) as caught:
        look(store, policy, **changes)
    return caught.value.kind, str(caught.value)


def test_what_fits_is_taken(store: Store) -> None:
    assert look(store) == FOUND
    policy = EvidencePolicy(
        chips=("Apple M4*",),
        os=("macOS 26",),
        compute_units=("CPU_AND_NE",),
        max_age=timedelta(days=3),
    )
    assert look(store, policy, asked={**ASKED, "probes": {"seed": 0, "kinds": ("gaussian",)}}) == (
        FOUND
    )


def test_missing(store: Store) -> None:
    store.path("placement", "m:L01").unlink()
    assert refusal(store) == ("missing", f"{FILE} is missing; {MISSING}")


def test_missing_of_a_model(store: Store) -> None:
    model = Model(name="m", shards=(SHARD,))
    with pytest.raises(UnprovenError) as caught:
        EvidenceFile.at(store, "behaviour", model).verified(
            files={}, asked={}, policy=EvidencePolicy(), now=NOW
        )
    assert str(caught.value) == (
        "evidence/m/behaviour.json is missing; on a Mac, run: pytest --ane-shards='m:*' -m gate "
        "--ane-record=missing"
    )


@pytest.mark.parametrize("data", [b"", b"\xff", b"{}", b"[" * 99_999, b'{"a": 1'])
def test_damaged(store: Store, data: bytes) -> None:
    store.path("placement", "m:L01").write_bytes(data)
    kind, says = refusal(store)
    assert kind == "damaged"
    assert says.startswith(f"{FILE} is damaged: ")
    assert says.endswith(STALE)


def test_of_another_shard(store: Store) -> None:
    store.write(replace(FOUND, subject="m:L02"))
    store.path("placement", "m:L02").replace(store.path("placement", "m:L01"))
    assert refusal(store) == (
        "damaged", f"{FILE} is damaged: it is evidence of placement of m:L02; {STALE}",
    )  # fmt: skip


@pytest.mark.parametrize(
    ("old", "new"),
    [('"ANE"', '"GPU"'), ("Apple M4 Max", "Apple M9 Max"), ("aaaa", "aaab"), ("2026-", "2027-")],
)
def test_edited(store: Store, old: str, new: str) -> None:
    path = store.path("placement", "m:L01")
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new, 1))
    assert refusal(store) == ("edited", f"{FILE} was edited after it was recorded; {STALE}")


def where(**changes: str | None) -> dict[str, Any]:
    """A record of another environment; what is None is not in it."""
    environment = {**FOUND.environment, **changes}
    return {"environment": {key: value for key, value in environment.items() if value is not None}}


NO_ANE = "which proves nothing of the ANE"
SIMULATED = "was computed by the CPU executor as simulated ANE (h16+), and no device ran it"
UNKNOWN = "a machine whose devices are not listed (by macOS 13, or by an older pytest-ane)"
REFUSED: list[tuple[dict[str, Any], dict[str, Any], dict[str, Any], str, str]] = [
    # What is changed of the record, of the policy and of today; the kind and the sentence.
    ({}, {}, {"files": {**FILES, "L01/Data/weight.bin": "c" * 64}}, "stale",
     "is of other bytes: L01/Data/weight.bin was bbbbbbbb, now is cccccccc"),
    ({}, {}, {"files": {"L01/Manifest.json": "a" * 64}}, "stale",
     "is of other bytes: L01/Data/weight.bin is gone"),
    ({}, {}, {"files": {**FILES, "L01/x": "d" * 64}}, "stale", "is of other bytes: L01/x is new"),
    ({}, {"chips": ("Apple M1",), "max_age": timedelta(hours=1)}, {"files": {}}, "stale",
     "is of other bytes: L01/Data/weight.bin is gone, first of 2 files"),
    ({}, {}, {"asked": {**ASKED, "probes": {"seed": 1, "kinds": ["gaussian"]}}}, "stale",
     "answers another question: probes.seed was 0, now is 1"),
    ({}, {}, {"asked": {**ASKED, "prompts": []}}, "stale",
     "answers another question: prompts was absent, now is []"),
    ({}, {}, {"asked": {"reference": "float32"}}, "stale",
     'answers another question: probes was { kinds = ["gaussian"], seed = 0 }, now is absent'),
    ({}, {"chips": ("Apple M3*", "Apple M5"), "max_age": timedelta(hours=1)}, {}, "chip",
     "was recorded on Apple M4 Max, and the policy takes 'Apple M3*', 'Apple M5'"),
    ({}, {"os": ("macOS 27",)}, {}, "os",
     "was recorded on macOS 26.1, and the policy takes 'macOS 27'"),
    ({}, {"compute_units": ("ALL",)}, {}, "compute-units",
     "was recorded with CPU_AND_NE, and the policy takes 'ALL'"),
    ({}, {"max_age": timedelta(hours=71)}, {}, "age",
     "was recorded 3 days ago, on 2026-11-18, and the policy takes 2 days at most"),
    (where(backend="cpu"), {}, {}, "backend", "was measured by the backend cpu, not on a device"),
    (where(backend=None), {}, {}, "backend",
     "was measured by the backend unknown, not on a device"),
    (where(backend="cpu", arithmetic="simulated ANE (h16+)"), {}, {}, "simulated", SIMULATED),
    (where(arithmetic="simulated ANE (h16+)"), {"chips": ("*",)}, {}, "simulated", SIMULATED),
    (where(virtual="yes", mac="VirtualMac2,1"), {}, {}, "device",
     f"was recorded on a virtual machine (VirtualMac2,1), {NO_ANE}"),
    (where(translated="yes", compute_units="CPU_ONLY"), {"compute_units": ("CPU_ONLY",)}, {},
     "device", f"was recorded on a Mac whose Python runs under Rosetta, {NO_ANE}"),
    (where(devices="CPU, GPU", ane_cores="0"), {"chips": ("*",)}, {}, "device",
     f"was recorded on a Mac for which Core ML lists no Neural Engine, {NO_ANE}"),
    (where(**dict.fromkeys(DEVICE)), {}, {}, "device", f"was recorded on {UNKNOWN}, {NO_ANE}"),
    (where(compute_units="CPU_ONLY"), {}, {}, "compute-units",
     "was recorded with CPU_ONLY, and the policy takes 'ALL', 'CPU_AND_NE'"),
    ({"measurement": Plan("counts", tallies=(Tally(None, 9, 9),))}, {}, {}, "incomplete",
     "holds counts or a log, not Core ML's plan alone"),
    ({}, {}, {"now": FOUND.time - timedelta(minutes=11)}, "future",
     "was recorded at 2026-11-18 16:00 UTC, which is still to come"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("record", "policy", "given", "kind", "says"), REFUSED, ids=range(len(REFUSED))
)
def test_what_proves_nothing(
    store: Store, record: Any, policy: Any, given: Any, kind: str, says: str
) -> None:
    store.write(replace(FOUND, **record))
    found = refusal(store, EvidencePolicy(**policy), **given)
    assert found == (kind, f"{FILE} {says}; {STALE}")


def test_unknown_machines_are_not_taken(store: Store) -> None:
    known = {"backend": "coreml", "compute_units": "CPU_AND_NE", **DEVICE}
    store.write(replace(FOUND, environment=known))
    assert look(store).environment == known
    store.write(replace(FOUND, environment={"backend": "coreml", **DEVICE}))
    for policy in ({}, {"chips": ("*",)}, {"os": ("macOS *",)}, {"compute_units": ("ALL",)}):
        kind, says = refusal(store, EvidencePolicy(**policy))  # type: ignore[arg-type]
        assert kind in ("chip", "os", "compute-units")
        assert "unknown" in says


def test_what_was_kept_off_the_ane_counts_where_a_policy_names_it(store: Store) -> None:
    found = replace(
        FOUND,
        **where(compute_units="CPU_ONLY"),
        measurement=replace(PLAN, compute_units="CPU_ONLY"),
    )
    store.write(found)
    assert look(store, EvidencePolicy(compute_units=("CPU_ONLY",))) == found


def test_clocks_may_be_minutes_apart(store: Store) -> None:
    assert look(store, now=FOUND.time - timedelta(minutes=9)) == FOUND


def test_a_file_s_own_opinion_is_not_read(store: Store) -> None:
    path = store.path("placement", "m:L01")
    data = json.loads(path.read_text())
    data["verdict"] = {"status": "passed"}
    path.write_text(json.dumps(sealed(data)))
    assert look(store) == FOUND


def test_signed(store: Store, tmp_path: Path) -> None:
    """By whom, of which record; tools that sign may write it anew, and an older one may stay."""
    key, path = new_key(), store.path("placement", "m:L01")
    policy = EvidencePolicy(signers=(write_public(key, tmp_path / "lab.pub"),))
    alone, bundled = (path.with_name(f"{path.name}.{end}.json") for end in ("dsse", "sigstore"))
    statement = stated(path.read_bytes())
    assert refusal(store, policy)[0] == "unsigned"
    write_json(alone, envelope(new_key(), statement))
    assert refusal(store, policy)[0] == "signer"
    older = replace(FOUND, time=FOUND.time - timedelta(days=1)).to_json().encode()
    write_json(alone, envelope(key, stated(older)))
    assert refusal(store, policy)[0] == "signature"
    write_json(bundled, bundle(key, statement))
    assert look(store, policy) == FOUND
    bundled.unlink()
    anew = json.dumps(json.loads(statement), separators=(",", ":")).encode()
    assert anew != statement
    write_json(alone, envelope(key, anew))
    assert look(store, policy) == FOUND
    # Somebody edits a number and seals the file again: only the signature tells.
    data = json.loads(path.read_text().replace('"Apple M4 Max"', '"Apple M5 Max"'))
    path.write_text(json.dumps(sealed(data)))
    assert look(store).environment["chip"] == "Apple M5 Max"
    kind, says = refusal(store, policy)
    assert kind == "signature"
    assert says.startswith(
        f"{FILE} is not what was signed: the file was changed, or recorded again; sign it: cosign"
    )


@pytest.mark.parametrize(
    ("changes", "shown"),
    [
        ({}, "Apple M4 Max, macOS 26.1, CPU_AND_NE"),
        ({"arithmetic": "simulated ANE (h16+)"}, "simulated ANE (h16+)"),
        ({"native": "replaced"}, "replayed Apple M4 Max, macOS 26.1, CPU_AND_NE"),
    ],
)
def test_a_verdict_says_where_it_is_from(changes: dict[str, str], shown: str) -> None:
    verdict = judge(replace(FOUND, environment={**FOUND.environment, **changes}), SHARD)
    assert (verdict.status, verdict.origin) == ("passed", f"recorded 2026-11-18, {shown}")
    assert changes.items() <= verdict.provenance.items()
