"""Evidence of several systems, recorded on replayed Macs: compared, and required."""

from __future__ import annotations

import shutil

import numpy as np
import pytest

from pytest_ane.mac.testing import DeviceRule, Mac, Replayer, Script
from tests.mlprogram.packages import Program
from tests.plugin.conftest import Project

pytestmark = pytest.mark.usefixtures("genuine")
OLD = Mac(os="26.7", build="25H10")
NEW = Mac(os="27.0", build="26A100")
MOVED = (
    DeviceRule("CPU", name="mid_proj"),
    DeviceRule("GPU", name="out_proj"),
    DeviceRule("CPU", name="gate"),
)


@pytest.fixture
def five(project: Project, monkeypatch: pytest.MonkeyPatch) -> Project:
    """A package of four convolutions and a SiLU, without a reference."""
    monkeypatch.setenv("COLUMNS", "250")
    program, random, last = Program("CoreML8"), np.random.default_rng(0), "x"
    program.input("x", (1, 64, 1, 1), "FLOAT16", kind=65552)
    for name in ("in_proj", "mid_proj", "gate", "down_proj", "out_proj"):
        if name == "gate":
            program.op("silu", name, "FLOAT16", (1, 64, 1, 1), x=last)
        else:
            weight = random.standard_normal((64, 64, 1, 1)).astype(np.float16)
            program.blob(f"{name}_w", "FLOAT16", weight.shape, weight.tobytes())
            program.op("conv", name, "FLOAT16", (1, 64, 1, 1), x=last, weight=f"{name}_w")
        last = name
    program.output(last, 65552)
    (folder := project.path / "made").mkdir()
    program.save(folder).rename(project.path / "five.mlpackage")
    return project.manifest(
        '[models.own.shard.five]\nartifact = "five.mlpackage"\nreference = "none"\n'
        '[models.own.policy.placement]\nrequire = "plan"\n'
    )


_RECORDED: dict[tuple[object, ...], dict[str, bytes]] = {}


def record(project: Project, mac: Mac, *rules: DeviceRule, to: str = "evidence") -> None:
    """What a Mac records of the package, the same bytes in every test; it runs once."""
    folder, key = project.path / to, (mac, rules, (project.path / "shards.toml").read_text())
    if key in _RECORDED:
        for name, data in _RECORDED[key].items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_bytes(data)
        return
    with Replayer(Script(mac, devices=rules)):
        project.gate("--ane-backend=coreml", "--ane-record=all", "--ane-evidence=recorded")
    made = project.path / "recorded"
    files = {path.relative_to(made).as_posix(): path.read_bytes() for path in made.glob("*/*")}
    _RECORDED[key] = files
    shutil.rmtree(made)
    record(project, mac, *rules, to=to)


EACH = '[models.own.policy.evidence]\nsystems = ["macOS 26", "macOS 27"]\n'


@pytest.fixture
def each(five: Project) -> Project:
    """A policy that wants the plan of two systems."""
    file = five.path / "shards.toml"
    file.write_text(file.read_text() + EACH)
    return five


def names(project: Project) -> list[str]:
    return sorted(path.name for path in (project.path / "evidence/own").iterdir())


def verify(project: Project, *options: str) -> pytest.RunResult:
    return project.gate("--ane-backend=cpu", "-k", "placement", *options)


@pytest.mark.slow
def test_each_system_has_its_file_and_both_must_pass(each: Project) -> None:
    record(each, OLD)
    assert names(each) == [
        "five.compression.json", "five.fidelity@macos-26.json", "five.placement@macos-26.json"
    ]  # fmt: skip
    result = verify(each)
    result.assert_outcomes(failed=1, deselected=3)
    result.stdout.fnmatch_lines(
        [
            "own:five: placement unproven",
            "  - *five.placement@macos-27.json is missing; on a Mac with macOS 27, run: pytest "
            "--ane-shards=own:five -m gate --ane-record=missing",
            "    macOS 26: passed",
        ]
    )
    record(each, NEW)
    result = verify(each, "-rA")
    result.assert_outcomes(passed=1, deselected=3)
    result.stdout.fnmatch_lines(
        [
            "macOS 27: passed",
            "evidence: 2 verified (Apple M4 Max, macOS 26.7, CPU_AND_NE; Apple M4 Max, macOS 27.0, "
            "CPU_AND_NE)",
        ]
    )


@pytest.mark.drawn
@pytest.mark.slow
def test_the_system_that_fails_decides_and_is_named(each: Project) -> None:
    record(each, OLD)
    record(each, NEW, *MOVED)
    result = verify(each)
    result.assert_outcomes(failed=1, deselected=3)
    result.stdout.fnmatch_lines(
        ["    macOS 26: passed", "FAILED * recorded *, macOS 27.0, CPU_AND_NE"]
    )


@pytest.mark.slow
def test_a_device_stands_for_its_system_and_evidence_for_the_others(each: Project) -> None:
    record(each, OLD, *MOVED)
    with Replayer(Script(NEW)):
        result = each.gate("--ane-backend=coreml", "-k", "placement")
    result.assert_outcomes(failed=1, deselected=3)
    result.stdout.fnmatch_lines(
        ["    macOS 27: passed", "FAILED * recorded *, macOS 26.7, CPU_AND_NE"]
    )
    with Replayer(Script(OLD)):
        result = each.gate("--ane-backend=coreml", "-k", "placement")
    result.assert_outcomes(failed=1, deselected=3)
    result.stdout.fnmatch_lines(
        ["  - *five.placement@macos-27.json is missing; on a Mac with macOS 27, run: *",
         "    macOS 26: passed"]
    )  # fmt: skip


def test_what_is_kept_is_not_the_origin_of_what_is_missing(each: Project) -> None:
    record(each, OLD)
    with Replayer(Script(OLD)):
        result = each.gate("--ane-backend=coreml", "--ane-record", "-k", "placement")
    result.assert_outcomes(failed=1, deselected=3)
    result.stdout.fnmatch_lines(["evidence: 1 kept"])
    (row,) = (line for line in result.outlines if line.startswith("UNPROVEN"))
    assert "recorded 20" not in row


def test_what_is_missing_of_one_system_is_recorded_beside_the_other(each: Project) -> None:
    record(each, OLD)
    before = (each.path / "evidence/own/five.placement@macos-26.json").read_bytes()
    with Replayer(Script(NEW)):
        result = each.gate("--ane-backend=coreml", "--ane-record", "-k", "placement")
    result.assert_outcomes(passed=1, deselected=3)
    result.stdout.fnmatch_lines(
        ["evidence: 1 recorded, 1 verified (Apple M4 Max, macOS 26.7, CPU_AND_NE)"]
    )
    assert (each.path / "evidence/own/five.placement@macos-26.json").read_bytes() == before
    assert "five.placement@macos-27.json" in names(each)


@pytest.mark.slow
def test_a_mac_of_no_system_that_is_named_records_nothing(each: Project) -> None:
    with Replayer(Script(Mac(os="15.6", build="24G84"))):
        result = each.gate("--ane-backend=coreml", "--ane-record", "-k", "placement")
    result.assert_outcomes(failed=1, deselected=3)
    result.stdout.fnmatch_lines(
        [
            "evidence: 1 not recorded",
            "  this Mac runs macOS 15.6, and policy.evidence.systems asks for macOS 26, macOS 27",
        ]
    )
    assert [*(each.path / "evidence").glob("*/*")] == []


def test_a_plan_of_each_goes_before_a_forecast_and_one_does_not(each: Project) -> None:
    file = each.path / "shards.toml"
    record(each, OLD)
    file.write_text(file.read_text().replace('require = "plan"', 'require = "forecast"'))
    result = verify(each)
    result.stdout.fnmatch_lines(["* (*predicted: *"])
    assert "macOS 26: passed" not in result.stdout.str()
    record(each, NEW)
    verify(each).stdout.fnmatch_lines(["* (Core ML's plan)*", "evidence: 2 verified *"])
