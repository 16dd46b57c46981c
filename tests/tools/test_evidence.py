"""`pytest-ane evidence list`, `show`, `verify` and `prune`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from functools import partial
from pathlib import Path

import pytest

from pytest_ane.gates.placement.plans import Plan, PlannedFunction, PlannedOperation
from pytest_ane.make import Artifact
from pytest_ane.records.record import Record, files_of
from pytest_ane.records.store import Store
from tests.mlprogram.packages import doubling
from tests.records.signing import envelope, new_key, stated, write_json
from tests.tools.conftest import AsJson, Says
from tests.tools.terminal import at_a_terminal

Call = Callable[..., list[str]]
SHARDS = """\
[models.m.shard.L00]
artifact = "L00.mlpackage"
reference = "none"

[models.m.shard.L01]
artifact = "L01.mlpackage"
reference = "none"
"""
REQUIRED = "[models.m.policy]\nplacement.require = 'plan'\n"


def plan(device: str = "ANE") -> Plan:
    """The plan of `doubling`."""
    weight = PlannedOperation("w", "const")
    operation = PlannedOperation("y", "add", device)  # type: ignore[arg-type]
    return Plan(
        "coremltools", (PlannedFunction("main", (weight, operation)),), compute_units="CPU_AND_NE"
    )


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Store:
    """Two packages and, recorded three days ago, both their plans."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")
    kept = Store(Path("evidence"))
    for shard in ("L00", "L01"):
        doubling().save(Path(shard)).rename(f"{shard}.mlpackage")
        kept.write(recorded(shard))
    Path("shards.toml").write_text(REQUIRED + SHARDS)
    return kept


def recorded(shard: str) -> Record:
    now = datetime.now(timezone.utc).replace(microsecond=0)
    return Record(
        gate="placement",
        subject=f"m:{shard}",
        files=files_of({shard: Artifact(Path(f"{shard}.mlpackage"))}),
        environment={
            "backend": "coreml", "chip": "Apple M4", "os": "macOS 26.1",
            "compute_units": "CPU_AND_NE", "virtual": "no", "translated": "no",
            "devices": "CPU, GPU, ANE", "ane_cores": "16",
        },
        asked={},
        time=now - timedelta(days=3, minutes=5),
        measurement=plan(),
    )  # fmt: skip


@pytest.fixture
def call(store: Store, says: Says) -> Call:
    return partial(says, "evidence", "--ane-cache=cache")


def test_list(call: Call, store: Store) -> None:
    store.write(replace(recorded("L01"), files={"L01/Manifest.json": "0" * 64}))
    store.write(replace(recorded("L00"), subject="old:L00"))
    (store.folder / "m" / "L00.fidelity.json").write_text("{")
    header, *lines, unused, last = call("list")
    assert header.split() == ["subject", "gate", "age", "chip", "system", "units", "state"]
    rows = [line.split("  ") for line in lines]
    assert [(row[0], row[-1].strip()) for row in rows] == [
        ("m:L00", "damaged"),
        ("m:L00", "valid"),
        ("m:L01", "stale"),
    ]
    assert unused == "unused evidence/old/L00.placement.json"
    assert "3 days" in rows[1]
    assert last == "4 files in evidence"


def test_as_json(as_json: AsJson, store: Store) -> None:
    options = ["--cache=cache", "--evidence=evidence"]
    listed = as_json("evidence", "list", *options)
    assert [(file["subject"], file["state"]) for file in listed["files"]] == [
        ("m:L00", "valid"),
        ("m:L01", "valid"),
    ]
    (shown,) = as_json("evidence", "show", "L00", *options)
    assert shown["record"]["subject"] == "m:L00"
    assert shown["verdict"]["status"] == "passed"
    lost = store.write(replace(recorded("L01"), subject="old:L01"))
    for more, removed in ([], 0), (["--yes"], 1):
        found = as_json("evidence", "prune", *more, *options)
        assert (found["unused"], found["removed"]) == ([str(lost)], removed)
    store.path("placement", "m:L00").unlink()
    found = as_json("evidence", "verify", *options, code=1)
    assert found["error"] == "1 of 2 verdicts are red."
    assert {v["subject"]: v["status"] for v in found["verdicts"]} == {
        "m:L00": "unproven",
        "m:L01": "passed",
    }


def test_what_was_simulated_is_no_evidence(call: Call, store: Store) -> None:
    made = recorded("L01")
    environment = {"backend": "cpu", "arithmetic": "simulated ANE (h16+)"}
    store.write(replace(made, environment=environment))
    assert call("list")[2].split("  ")[-1].strip() == "simulated"
    assert "simulated ANE (h16+)" in call("list")[2]
    verified = " ".join("\n".join(call("verify", code=1)).split())
    assert "computed by the CPU executor as simulated ANE (h16+), and no device ran it" in verified


def test_verify(call: Call) -> None:
    lines = call("verify")
    assert [line.split()[:3] for line in lines[:-1]] == [
        ["passed", "m:L00", "placement"],
        ["passed", "m:L01", "placement"],
    ]
    assert "on the ANE (Core ML's plan)" in lines[0]
    assert lines[-1] == "2 gates: 2 passed"


def test_verify_says_the_worst_first(call: Call, store: Store) -> None:
    store.path("placement", "m:L00").unlink()
    store.write(replace(recorded("L01"), measurement=plan("CPU")))
    lines = call("verify", code=1)
    assert [line.split()[:2] for line in lines[:2]] == [["FAILED", "m:L01"], ["UNPROVEN", "m:L00"]]
    assert (
        "  - evidence/m/L00.placement.json is missing; on a Mac, run: pytest --ane-shards=m:L00 "
        "-m gate --ane-record=missing"
    ) in lines
    assert "m:L01: placement failed" in lines
    assert lines[-1] == "pytest-ane: 2 of 2 verdicts are red."


def test_one_byte_of_a_package_and_none(call: Call) -> None:
    Path("L00.mlpackage/Manifest.json").write_text("L0O")
    assert "evidence/m/L00.placement.json is of other bytes: " in "\n".join(call("verify", code=1))
    call("verify", "--ane-shards=L01")
    Path("L00.mlpackage").rename("gone")
    assert "L00.mlpackage does not exist" in "\n".join(call("verify", code=1))


def test_what_no_policy_requires_is_not_verified(call: Call) -> None:
    Path("shards.toml").write_text(SHARDS)
    (line,) = call("verify", code=1)
    assert line.startswith(
        "pytest-ane: No policy of the selected shards requires evidence, so nothing was verified"
    )


def test_what_is_not_built_is_not_built_here(call: Call, store: Store) -> None:
    Path("shards.toml").write_text(
        "[models.m]\nfamily = 'llama'\nsource = { seeded = 1, config = { hidden_size = 64 } }\n"
        "shards = 'L00'\npolicy.placement.require = 'plan'\n"
    )
    lines = call("verify", code=1)
    assert (
        "  - m:L00 is not built, and nothing is built here; run: pytest --ane-shards=m:L00 -m gate"
    ) in lines
    assert call("list")[1].split()[-2:] == ["not", "built"]


@pytest.mark.parametrize("what", ["m:L01", "L01", "evidence/m/L01.placement.json"])
def test_show(call: Call, what: str) -> None:
    lines = call("show", what)
    assert lines[0] == "m:L01 placement"
    assert lines[1].startswith("recorded ")
    assert lines[1].endswith(" UTC, 3 days ago")
    assert any(line.startswith("of             3 files, L01/") for line in lines)
    assert "chip           Apple M4" in lines
    assert any(line.startswith("  ane_ops: 1") for line in lines)
    assert lines[-1].startswith("verdict        passed: ")


def test_show_what_is_stale_or_of_nobody(call: Call, store: Store) -> None:
    Path("L01.mlpackage/Manifest.json").write_text("L0l")
    assert "is of other bytes: " in call("show", "m:L01")[-1]
    path = store.write(replace(recorded("L01"), subject="old:L01"))
    assert call("show", str(path))[-1] == (
        "verdict        none: no shard of the manifest uses this file"
    )


@pytest.fixture
def lost(store: Store) -> list[Path]:
    """A record of a shard that is gone, signed, and a signature whose record is gone."""
    path = store.write(replace(recorded("L01"), subject="old:L01"))
    signed = envelope(new_key(), stated(path.read_bytes()))
    orphan = store.folder / "m" / "L01.fidelity.json.sigstore.json"
    return [
        path,
        write_json(orphan, {"dsseEnvelope": signed}),
        write_json(path.with_name(f"{path.name}.dsse.json"), signed),
    ]


def test_prune(call: Call, store: Store, lost: list[Path]) -> None:
    kept = write_json(store.folder / "m" / "L01.placement.json.sigstore.json", {})
    lines = call("prune")
    assert lines[:-1] == [f"unused {path}" for path in lost]
    assert lines[-1] == (
        "3 files would be deleted; nothing was: pytest-ane evidence prune --yes deletes them"
    )
    assert all(path.exists() for path in lost)
    assert call("prune", "--yes") == [*lines[:-1], "3 files removed from evidence"]
    assert not any(path.exists() for path in lost)
    assert kept.exists()
    assert len(store.files()) == 2
    assert call("prune") == ["0 files removed from evidence"]


@pytest.mark.parametrize(("answer", "gone"), [("y", True), ("n", False), ("", False)])
def test_prune_asks_at_a_terminal(
    call: Call, lost: list[Path], monkeypatch: pytest.MonkeyPatch, answer: str, gone: bool
) -> None:
    at_a_terminal(monkeypatch, answer)
    lines = call("prune")
    assert lines[:3] == [f"unused {path}" for path in lost]
    assert [path.exists() for path in lost] == [not gone] * 3


def test_prune_takes_only_records(call: Call, lost: list[Path]) -> None:
    edited = Path("d/L01.placement.json")
    others = [
        *map(
            Path, ("web/package.json", "src/config.json", "x/Manifest.json", "y/b.json.dsse.json")
        ),
        edited,
        Path("d/b.json.dsse.json"),
    ]
    for path in others:
        path.parent.mkdir(exist_ok=True)
        write_json(path, {"format": 1, "gate": "placement", "name": "mine"})
    edited.write_bytes(lost[0].read_bytes().replace(b"M4", b"M5"))
    write_json(others[-1], envelope(new_key(), b'{"name": "mine"}'))
    Path("linked").symlink_to("evidence/old", target_is_directory=True)
    Path("d/link.json").symlink_to(lost[0].absolute())
    assert call("prune", "--ane-evidence=.", "--yes") == ["0 files removed from ."]
    assert all(path.exists() for path in (*others, *lost))
    assert Path("d/link.json").exists()
    assert Path("L00.mlpackage/Manifest.json").exists()


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["show"], "evidence show needs one evidence file, shard or model"),
        (["show", "a", "b"], "evidence show needs one evidence file, shard or model"),
        (["verify", "x"], "evidence verify takes no file"),
        (["verify", "--policy-from=main"], "evidence verify takes no --policy-from"),
        (["verify-run", "run.jsonl"], "evidence verify-run needs the file of one run and --poli"),
        (["compare"], "evidence compare needs --by os or --by chip"),
        (["list", "--by=os"], "evidence list takes no --by"),
        (["compare", "no", "--by=os"], "no is no folder"),
        (["show", "m:L99"], "m:L99 is neither an evidence file nor a shard or model with evidence"),
        (["verify", "--ane-shards=L99"], "L99"),
        (["list", "--ane-manifest=no.toml"], "no.toml does not exist"),
    ],
)
def test_sentences(call: Call, arguments: list[str], sentence: str) -> None:
    (line,) = call(*arguments, code=1)
    assert sentence in line


def test_show_of_a_damaged_file(call: Call, store: Store) -> None:
    store.path("placement", "m:L00").write_bytes(b"{")
    (line,) = call("show", "m:L00", code=1)
    assert line.startswith("pytest-ane: evidence/m/L00.placement.json: ")
