"""Which weight and which operation is to blame."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_ane.make.palettize._palettes import palettize
from pytest_ane.manifest import Palettize
from pytest_ane.mlprogram.blob import load
from pytest_ane.mlprogram.errors import ExecutionError
from pytest_ane.mlprogram.model import read_model
from pytest_ane.mlprogram.records import MLModel
from pytest_ane.mlprogram.weights import take_census
from pytest_ane.probes.cases import package_case
from pytest_ane.tools.blame.analysis import blame, share_gone
from tests.gates.fidelity import blocks
from tests.gates.hazards import programs as hazard_programs
from tests.tools.test_operations import case, squares

GOOD = dict.fromkeys(blocks.NAMES, 8)


@pytest.mark.parametrize("name", blocks.NAMES)
@pytest.mark.slow
def test_the_spoilt_weight_is_named_first_and_its_mend_mends(name: str, tmp_path: Path) -> None:
    small, plain = blocks.models(tmp_path, GOOD | {name: 2})
    cases = blocks.cases(plain)
    found = blame(small, plain, cases)
    first, *others = found.weights
    assert first.weight.name == name
    assert first.share > 0.9
    assert all(other.share < 0.1 and other.remedy is None for other in others)
    assert first.alone == pytest.approx(found.error, rel=0.1)
    # Built in earnest, the mend has the error and the bytes that were told.
    asked = first.remedy.settings
    assert isinstance(asked, Palettize)
    assert asked.group_size == 16 or asked.nbits > 2
    source = Path(plain.path)
    settings = {n: Palettize(nbits=8, group_size=16, weight_threshold=0) for n in GOOD}
    settings[name] = asked.model_copy(update={"weight_threshold": 0})
    palettize(source, tmp_path / "mended.mlpackage", settings, threads=1)
    mended = read_model(tmp_path / "mended.mlpackage")
    assert blame(mended, plain, cases).error == pytest.approx(first.remedy.error, rel=1e-6)
    assert first.remedy.error < found.error / 2
    more = take_census(mended).stored_bytes - take_census(small).stored_bytes
    assert first.remedy.more == more > 0


def test_the_operation_that_takes_it_is_first_too(tmp_path: Path) -> None:
    small, plain = blocks.models(tmp_path, GOOD | {"second": 2})
    first, *_ = blame(small, plain, blocks.cases(plain)).operations
    assert (first.name, first.weights) == ("second_out", ("second",))


def test_hazards_of_the_ane_s_arithmetic_are_causes() -> None:
    made, inputs = hazard_programs.overflow(early=False)
    case = package_case("gaussian", "probe", [inputs], [])
    assert blame(made, None, [case]).hazards == ()
    found = blame(made, None, [case], arithmetic="ane")
    assert found.cause == "engine"
    (hazard,) = found.hazards
    assert (hazard.severity, hazard.where.op, hazard.where.probe) == ("failed", "down", "probe")


def test_k_means_mends_even_steps_at_no_cost(tmp_path: Path) -> None:
    """One large value takes all even steps for itself; k-means gives it one."""
    made = blocks.program()
    weight = (np.random.default_rng(0).choice([-1, 1, 0.5], (32, 32, 1, 1)) / 6).astype(np.float16)
    weight[0, 0] = weight[16, 0] = 40
    made.blob("outlier", "FLOAT16", (32, 32, 1, 1), weight.tobytes())
    made.op("conv", "z", "FLOAT16", (1, 32, None, 1), x="y", weight="outlier")
    made.block.outputs[:] = ["z"]
    made.model.description.output[0].name = "z"
    source = made.save(tmp_path / "plain")
    plain = read_model(source)
    small = read_model(blocks.palettized(source, tmp_path / "small", {"outlier": 2}, "uniform"))
    cases = [replace(c, rows=flat, expected={}) for c in blocks.cases(plain_block(tmp_path))]
    (first,) = blame(small, plain, cases).weights
    assert isinstance(first.remedy.settings, Palettize)
    assert (first.remedy.settings.mode, first.remedy.more) == ("kmeans", 0)


def plain_block(folder: Path) -> MLModel:
    return read_model(blocks.plain(folder / "block"))


def flat(outputs):
    return {"z": np.asarray(outputs["z"], np.float32).reshape(1, -1)}


def test_errors_are_of_the_contribution_where_the_residual_is_known(tmp_path: Path) -> None:
    small, plain = blocks.models(tmp_path, GOOD | {"first": 2})
    with_path = blame(small, plain, blocks.cases(plain))
    without = blame(small, plain, blocks.cases(plain, residual=False))
    assert (with_path.contribution, without.contribution) == (True, False)
    assert with_path.error > 1.5 * without.error
    names = [[c.weight.name for c in found.weights] for found in (with_path, without)]
    assert names[0] == names[1]


def test_the_worst_cases_are_asked(tmp_path: Path) -> None:
    small, plain = blocks.models(tmp_path, GOOD)
    cases = blocks.cases(plain, count=4)
    off = {name: rows + 1 for name, rows in cases[2].expected.items()}
    found = blame(small, plain, [*cases[:2], replace(cases[2], expected=off), cases[3]], most=1)
    assert (found.probes, found.of) == (("gaussian #2",), 4)
    # An error that no weight makes: restoring all of them leaves it.
    assert found.exact == pytest.approx(found.error, rel=0.05)


def test_one_exact_in_float32_has_no_error(tmp_path: Path) -> None:
    small, plain = blocks.models(tmp_path, GOOD)
    found = blame(small, plain, blocks.cases(plain))
    assert found.exact < 1e-2 > found.error - found.exact
    assert len(found.weights) == 3
    assert found.without == ""


def test_no_compressed_weights(tmp_path: Path) -> None:
    plain = plain_block(tmp_path)
    found = blame(plain, plain, blocks.cases(plain))
    assert found.weights == ()
    assert found.without.startswith("It has no compressed weights, and none differ from")
    assert found.operations


def test_an_uncompressed_weight_that_is_another_one(tmp_path: Path) -> None:
    """As where the artifact was built from another checkpoint; nothing can mend that."""
    made = blocks.program()
    weight = np.random.default_rng(9).standard_normal((32, 32, 1, 1)).astype(np.float16)
    made.blob("other", "FLOAT16", (32, 32, 1, 1), weight.tobytes())
    offset = made.block.operations[-1].attributes["val"].blobFileValue.offset
    del made.block.operations[-1]
    second = next(op for op in made.block.operations if op.outputs[0].name == "second")
    second.attributes["val"].blobFileValue.offset = offset
    plain = plain_block(tmp_path)
    found = blame(read_model(made.save(tmp_path / "other")), plain, blocks.cases(plain))
    assert [(c.weight.name, c.weight.stages, c.remedy) for c in found.weights] == [
        ("second", (), None)
    ]
    assert found.weights[0].share == pytest.approx(1, abs=1e-3)


def test_an_uncompressed_package_of_something_else(tmp_path: Path) -> None:
    small, _ = blocks.models(tmp_path, GOOD)
    other = read_model(squares(tmp_path / "other"))
    found = blame(small, other, blocks.cases(small))
    assert found.weights == ()
    assert found.absent == blocks.NAMES
    assert found.without.startswith("None of its 3 compressed weights has a counterpart")


def test_without_an_uncompressed_package_operations_are_still_asked(tmp_path: Path) -> None:
    """The reference is then the program itself in float32."""
    model = read_model(squares(tmp_path))
    found = blame(model, None, [case({"x": np.float16([[300, 1, 2, 3]])})], without="None is had.")
    assert (found.error, found.without, found.weights) == (1.0, "None is had.", ())
    assert math.isnan(found.exact)
    assert found.operations[0].note == "overflows fp16: 90,000 in float32"


def test_a_weight_that_makes_nan_is_named(tmp_path: Path) -> None:
    """A table with an infinity gives NaN behind a product with zero."""
    _, plain = blocks.models(tmp_path, GOOD)
    bad = read_model(blocks.palettized(Path(plain.path), tmp_path / "bad", GOOD))
    op = next(op for op in bad.main.walk() if op.name == "second_palettized")
    table = load(bad, *op.inputs["lut"])
    file = Path(bad.weights) / "weight.bin"
    data = file.read_bytes()
    assert data.count(table.tobytes()) == 1
    broken = table.copy()
    broken.reshape(-1)[:] = np.inf
    file.write_bytes(data.replace(table.tobytes(), broken.tobytes()))
    found = blame(read_model(bad.path), plain, blocks.cases(plain))
    first, *others = found.weights
    assert (first.weight.name, found.error) == ("second", math.inf)
    assert first.restored < 0.1
    assert first.share == 1.0
    assert all(other.share == 0 and other.restored == math.inf for other in others)
    assert first.remedy.error < 0.1


def test_no_cases_and_references_of_another_shape(tmp_path: Path) -> None:
    plain = plain_block(tmp_path)
    with pytest.raises(ExecutionError, match="there is no probe to blame anything on"):
        blame(plain, plain, [])
    (one,) = blocks.cases(plain, count=1)
    with pytest.raises(ExecutionError, match=r"the reference gives q \[2, 2\], which the artifact"):
        blame(plain, plain, [replace(one, expected={"q": np.zeros((2, 2), np.float32)})])


ERRORS = st.lists(st.floats(0, 1e6), min_size=1, max_size=6)


@given(ERRORS)
def test_shares_of_independent_errors_add_up_to_one(alone: list[float]) -> None:
    """Their squares add up; one restored leaves those of the others."""
    total = math.hypot(*alone)
    left = [math.hypot(*(x for j, x in enumerate(alone) if j != i)) for i in range(len(alone))]
    found = [share_gone(total, each) for each in left]
    assert all(share <= 1 for share in found)
    if total > 1e-100:
        assert sum(found) == pytest.approx(1, abs=1e-6)


@pytest.mark.parametrize(
    ("now", "left", "share"),
    [(math.inf, 0.5, 1.0), (math.inf, math.inf, 0.0), (0.5, math.inf, -math.inf), (0.5, 0.5, 0.0),
     (0.0, 0.0, 0.0), (0.0, 0.1, -math.inf)],
)  # fmt: skip
def test_shares_where_errors_are_infinite(now: float, left: float, share: float) -> None:
    assert share_gone(now, left) == share
