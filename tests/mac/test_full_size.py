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
