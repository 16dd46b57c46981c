"""An artifact's program with exact weights in place of some."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from pytest_ane.backends.cpu import CpuRunner
from pytest_ane.mlprogram.executor import Session
from pytest_ane.mlprogram.model import read_model
from pytest_ane.mlprogram.records import MLModel
from pytest_ane.tools.blame import weights as restore
from pytest_ane.tools.blame.weights import Restorer
from tests.gates.fidelity import blocks
from tests.mlprogram.packages import Program

BITS = {"first": 4, "second": 2, "third": 4}


@pytest.fixture
def both(tmp_path: Path) -> tuple[MLModel, MLModel]:
    return blocks.models(tmp_path, BITS)


def y(session: Session) -> np.ndarray:
    x = np.random.default_rng(5).standard_normal((1, 32, 3, 1)).astype(np.float16)
    return session.predict({"x": x})["y"]


@pytest.mark.parametrize("held", [1 << 30, 0])
def test_nothing_and_everything_restored(
    both: tuple[MLModel, MLModel], held: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Held decoded or streamed from the files, the result is the same."""
    monkeypatch.setattr(restore, "_HELD", held)
    small, plain = both
    restorer = Restorer(small, plain)
    assert (restorer.names, restorer.absent) == (blocks.NAMES, ())
    assert np.array_equal(y(restorer.session()), y(Session(small)))
    assert np.array_equal(y(restorer.session(blocks.NAMES)), y(Session(plain)))
    assert not np.array_equal(y(restorer.session(["second"])), y(Session(small)))


@pytest.mark.parametrize("name", blocks.NAMES)
def test_one_restored_is_a_package_in_which_only_the_others_are_compressed(
    both: tuple[MLModel, MLModel], name: str, tmp_path: Path
) -> None:
    others = {other: bits for other, bits in BITS.items() if other != name}
    package = blocks.palettized(Path(both[1].path), tmp_path / "others", others)
    runner = CpuRunner(Restorer(*both).session([name]))
    x = np.random.default_rng(5).standard_normal((1, 32, 3, 1)).astype(np.float16)
    assert runner.make_state() is None
    assert np.array_equal(runner.predict({"x": x})["y"], y(Session(read_model(package))))


def test_other_values(both: tuple[MLModel, MLModel]) -> None:
    zero = {"third": np.zeros((32, 32, 1, 1), np.float32)}
    x = np.random.default_rng(5).standard_normal((1, 32, 3, 1)).astype(np.float16)
    assert np.array_equal(y(Restorer(*both).session(others=zero)), x.astype(np.float32))


def test_weights_without_a_counterpart(both: tuple[MLModel, MLModel], tmp_path: Path) -> None:
    program = Program()
    program.input("x", (1, 32, 1, 1), "FLOAT16", kind=65552)
    program.blob("first", "FLOAT16", (32, 32, 1, 1), bytes(2048))
    program.blob("second", "FLOAT16", (32, 16, 1, 1), bytes(1024))
    for name in ("first", "second"):
        program.op("conv", f"{name}_out", "FLOAT16", (1, 32, 1, 1), x="x", weight=name)
    program.output("first_out", 65552)
    other = read_model(program.save(tmp_path / "other"))
    restorer = Restorer(both[0], other)
    assert (restorer.names, restorer.absent) == (("first",), ("second", "third"))
    assert Restorer(both[0], None).absent == blocks.NAMES


def test_names_that_conversion_to_fp16_adds_to(tmp_path: Path) -> None:
    """A reference kept in float32 has `first` where the artifact has `first_to_fp16`."""
    made = blocks.program()
    for op in made.block.operations:
        op.outputs[0].name = op.outputs[0].name.replace("first", "first_to_fp16")
        for argument in (a for group in op.inputs.values() for a in group.arguments):
            argument.name = argument.name.replace("first", "first_to_fp16")
    source = made.save(tmp_path / "renamed")
    small = blocks.palettized(source, tmp_path / "small", {"first_to_fp16": 2})
    restorer = Restorer(read_model(small), read_model(blocks.plain(tmp_path)))
    assert (restorer.names, restorer.absent) == (("first_to_fp16",), ())
