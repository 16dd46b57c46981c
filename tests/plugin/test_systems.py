"""Evidence that two replayed Macs recorded of one package, compared."""

from __future__ import annotations

import numpy as np
import pytest

from pytest_ane.cli import main
from pytest_ane.testing import VIRTUAL, DeviceRule, Mac, Replayer, Script
from tests.mil.packages import Program
from tests.plugin.conftest import Project

pytestmark = pytest.mark.usefixtures("genuine")
OLD = Mac(os="26.7", build="25H10")
NEW = Mac(os="27.0", build="26A100")
MOVED = (
    DeviceRule("CPU", name="mid_proj"),
    DeviceRule("GPU", name="out_proj"),
    DeviceRule("CPU", name="gate"),
)


@pytest.fixture(autouse=True)
def _not_in_ci(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CI", raising=False)
    monkeypatch.setenv("COLUMNS", "200")


@pytest.fixture
def five(project: Project) -> Project:
    """A package of four convolutions and a SiLU, without a reference."""
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


def record(project: Project, mac: Mac, *rules: DeviceRule, to: str = "evidence") -> None:
    with Replayer(Script(mac, devices=rules)):
        project.gate("--ane-backend=coreml", "--ane-record=all", f"--ane-evidence={to}")


def compared(capsys: pytest.CaptureFixture[str], *arguments: str, code: int) -> list[str]:
    capsys.readouterr()
    assert main(["evidence", "compare", *arguments, "--by=os", "--cache=cache"]) == code
    return capsys.readouterr().out.splitlines()


def test_the_three_operations_in_which_two_systems_differ(
    five: Project, capsys: pytest.CaptureFixture[str]
) -> None:
    record(five, OLD)
    record(five, NEW, *MOVED, to="newer")
    lines = compared(capsys, "newer", code=1)
    assert lines[0] == ("macOS 26.7 (25H10) -> macOS 27.0 (26A100): 2 gates of own:five compared")
    at = lines.index("  3 operations that moved:")
    assert [line.split() for line in lines[at + 2 : at + 5]] == [
        ["own:five", "1", "conv", "ANE", "->", "CPU", "mid_proj"],
        ["own:five", "1", "conv", "ANE", "->", "GPU", "out_proj"],
        ["own:five", "1", "silu", "ANE", "->", "CPU", "gate"],
    ]
    (verdict,) = [line for line in lines if "passed" in line]
    assert verdict.split()[:4] == ["own:five", "placement", "passed", "failed"]


def test_a_virtual_machine_is_no_system(five: Project, capsys: pytest.CaptureFixture[str]) -> None:
    """It records compression, which is the same everywhere and so compares no systems."""
    record(five, OLD)
    record(five, VIRTUAL, to="newer")
    names = [path.name for path in (five.path / "newer" / "own").iterdir()]
    assert names == ["five.compression.json"]
    assert compared(capsys, "newer", code=1)[0] == "not compared: 2 files"
