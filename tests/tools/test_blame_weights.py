"""A shard's weights: exact ones in place of some, and settings that would mend them."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest

from pytest_ane.backends.cpu import CpuRunner
from pytest_ane.manifest import Settings
from pytest_ane.mlprogram import pairing
from pytest_ane.mlprogram.executor import Session
from pytest_ane.mlprogram.model import read_model
from pytest_ane.mlprogram.pairing import Restorer
from pytest_ane.mlprogram.records import MLModel
from pytest_ane.mlprogram.weights import Stage, Weight
from pytest_ane.tools.blame import describe
from pytest_ane.tools.blame.analysis import candidates, find_remedy
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
    monkeypatch.setattr(pairing, "_HELD", held)
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


# Remedies.

SHAPE = (64, 32, 1, 1)


def weight(bits: int, groups: int, op: str = "constexpr_lut_to_dense") -> Weight:
    size = 64 * 32 * bits // 8 + groups * 2 * 2**bits
    return Weight("w", SHAPE, size, bits, (Stage(op, bits, groups),))


def offered(given: Weight, axis: int | None = 0) -> list[tuple[str, int]]:
    return [(describe(s), size) for size, s in candidates(given, axis)]


def test_palettes_of_more_bits_and_smaller_groups() -> None:
    assert offered(weight(4, 2)) == [
        ("4-bit kmeans, groups of 32", 1024 + 2 * 32),  # For nothing, where steps are even.
        ("4-bit kmeans, groups of 16", 1024 + 4 * 32),
        ("4-bit kmeans, groups of 8", 1024 + 8 * 32),
        ("6-bit kmeans, groups of 32", 1536 + 2 * 128),
        ("6-bit kmeans, groups of 16", 1536 + 4 * 128),
        ("8-bit kmeans, groups of 32", 2048 + 2 * 512),
        ("fp16", 4096),
    ]  # 8 bits in groups of 16 take what fp16 takes.


def test_one_table_for_a_weight_and_groups_only_along_an_axis() -> None:
    assert [name for name, _ in offered(weight(6, 1))][1:3] == [
        "6-bit kmeans, groups of 32", "6-bit kmeans, groups of 16",
    ]  # fmt: skip
    tables = [f"{bits}-bit kmeans, one table" for bits in (4, 6, 8)]
    assert [name for name, _ in offered(weight(4, 1), None)] == [*tables, "fp16"]


@pytest.mark.parametrize(("bits", "finer"), [(4, True), (8, False)])
def test_integers(bits: int, finer: bool) -> None:
    names = [name for name, _ in offered(weight(bits, 64, "constexpr_blockwise_shift_scale"))]
    assert ("int8 per channel" in names, names[-1]) == (finer, "fp16")


def test_the_first_that_leaves_a_tenth_is_taken() -> None:
    """From 1 to 0.6 when restored: the square may be 0.36 + 0.064 at most."""
    small = weight(4, 2)
    offers, asked = candidates(small, 0), []

    def error(given: Settings) -> float:
        asked.append(describe(given))
        return {1: 0.7, 2: 0.66, 3: 0.66, 4: 0.65}[len(asked)]

    mend = find_remedy(small, offers, now=1.0, restored=0.6, error=error)
    assert asked == [describe(s) for _, s in offers[:4]]
    assert (describe(mend.settings), mend.error, mend.more) == (
        "6-bit kmeans, groups of 32", 0.65, 1792 - small.compressed_bytes,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("now", "left", "settings"),
    [
        *((1.0, bad, "fp16") for bad in (1.0, 1e200, math.inf, math.nan)),
        # Of an error that is not finite, a tenth above that of the exact weight.
        (math.inf, 0.62, "4-bit kmeans, groups of 32"),
        (math.inf, 0.64, "fp16"),
    ],
)
def test_what_is_accepted(now: float, left: float, settings: str) -> None:
    small = weight(4, 2)
    offers = candidates(small, 0)
    mend = find_remedy(small, offers, now=now, restored=0.6, error=lambda _: left)
    assert describe(mend.settings) == settings
    assert mend.error == (0.6 if settings == "fp16" else left)
