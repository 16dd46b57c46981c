"""The lines of the notes: shards at full size, compiled and planned on a replayed Mac."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import pytest

from pytest_ane.backends.coreml.process import Device
from pytest_ane.gates.placement.judge import judge
from pytest_ane.gates.placement.measure import plan_on_device
from pytest_ane.gates.placement.plans import Plan, summarise
from pytest_ane.mac.testing import DeviceRule, Replayer, Script
from pytest_ane.make import Cache
from pytest_ane.make.shard import build_shard
from pytest_ane.manifest import load
from pytest_ane.manifest.policy import PlacementPolicy
from pytest_ane.mlprogram.model import read_model
from pytest_ane.project.models import OpenModel
from tests.mlprogram.packages import Program

T = TypeVar("T")
EXAMPLES = Path(__file__).parents[2] / "examples"


class Compiling:
    """Compiles with coremltools into a folder, once."""

    units = "CPU_AND_NE"
    device = Device(timeout=None)

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def say(self, text: str) -> None:
        raise AssertionError(text)

    def with_compiled(self, artifact: Path, use: Callable[[Path], T]) -> T:
        from coremltools.models.utils import compile_model

        target = self.folder / f"{artifact.stem}.mlmodelc"
        if not target.exists():
            compile_model(str(artifact), str(target))
        return use(target)


def _plan(package: Path, folder: Path, *rules: DeviceRule) -> Plan:
    with Replayer(Script(devices=rules)):
        return plan_on_device(Compiling(folder), package, read_model(package, weights=False))


def _built(example: str, shard: str, folder: Path) -> Path:
    model = load(EXAMPLES / example).models[0]
    opened = OpenModel(model, Cache(folder / "cache"))
    (wanted,) = (one for one in model.shards if one.id == shard)
    return build_shard(
        wanted, opened.cache, identity=opened.identity, model=lambda: opened.language_model
    ).path


@pytest.mark.drawn
@pytest.mark.heavy
@pytest.mark.parametrize(
    ("example", "shard", "convolutions", "ops", "constants"),
    [
        ("zaya1-8b.toml", "L01", 36, 163, {"const": 294, "constexpr_lut_to_dense": 32}),
        # As in the notes, but for constants: of routing without top-k and in fp16.
        ("gemma4.toml", "L00.p0", 4, 34, {"const": 47, "constexpr_lut_to_dense": 3}),
    ],
)
def test_a_shard_of_an_example(
    example: str, shard: str, convolutions: int, ops: int, constants: dict[str, int], tmp_path: Path
) -> None:
    package = _built(example, shard, tmp_path)
    plan = _plan(package, tmp_path)
    summary = summarise(plan)
    assert (summary.conv_ane, summary.conv_total) == (convolutions, convolutions)
    assert (dict(summary.devices), dict(summary.compile_time)) == ({"ANE": ops}, constants)
    assert judge(plan, PlacementPolicy(), shard).status == "passed"
    moved = _plan(package, tmp_path, DeviceRule("CPU", op="conv"))
    assert judge(moved, PlacementPolicy(), shard).status == "failed"


def test_the_line_of_the_notes(tmp_path: Path) -> None:
    """A program of as many operations of each kind as the notes counted in their pack."""
    program = Program()
    program.input("x", (1, 4))
    for index in range(44):
        program.const(f"c{index}", [1.0], "FLOAT32")
    for index in range(4):
        program.op("ios18.constexpr_lut_to_dense", f"w{index}", shape=(1, 4), lut="c0")
    for index in range(34):
        before = f"y{index - 1}" if index else "x"
        weight = f"w{index}" if index < 4 else "c1"
        kind = "ios18.conv" if index < 4 else "ios18.mul"
        program.op(kind, f"y{index}", shape=(1, 4), x=before, weight=weight)
    program.output("y33")
    package = program.save(tmp_path)
    summary = summarise(_plan(package, tmp_path))
    assert dict(summary.devices) == {"ANE": 34}
    assert dict(summary.compile_time) == {"const": 44, "constexpr_lut_to_dense": 4}
    moved = summarise(_plan(package, tmp_path, DeviceRule("GPU", name="y3?")))
    assert dict(moved.devices) == {"ANE": 30, "GPU": 4}
