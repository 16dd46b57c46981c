"""The error of every weight, held against what coremltools' own decompression gives."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pydantic import TypeAdapter

from pytest_ane.make import Distortion, compare_weights
from pytest_ane.make.compress import compress
from pytest_ane.make.coremltools_quiet import converter_notes, import_coremltools
from pytest_ane.manifest import Compression
from pytest_ane.mlprogram.errors import AneError
from pytest_ane.mlprogram.model import read_model
from pytest_ane.mlprogram.package import parse_package
from pytest_ane.mlprogram.proto import set_name
from pytest_ane.mlprogram.records import MLModel
from tests.make.test_optimize import ANYWHERE, SINCE_IOS18, network, saved_network
from tests.mlprogram.packages import Program

CASES = {name: asked for name, (asked, _) in (ANYWHERE | SINCE_IOS18).items()}


def distortions(model: MLModel, against: MLModel) -> tuple[Distortion, ...]:
    return compare_weights(model, against).distortions


def loaded(path: Path) -> Any:
    with converter_notes():
        return import_coremltools().models.MLModel(str(path), skip_model_load=True)


def dense(model: Any) -> dict[str, Any]:
    """The weights of a model as coremltools decodes them."""
    cto = import_coremltools().optimize.coreml
    with converter_notes():
        found = cto.get_weights_metadata(cto.decompress_weights(model), weight_threshold=1000)
    return {name.partition("_")[0]: weight.val.astype(np.float64) for name, weight in found.items()}


@pytest.mark.drawn
@pytest.mark.parametrize(
    "name",
    ["uniform", "groups", "pairs", "scaled", "int8", "int4",
     "one scale", "uint8 with offset", "uint4 by block", "half", "palettes of int8",
     "pruned, palettes", "pruned, int8", "pruned, palettes of int8", "int8, palettes"],
)  # fmt: skip
def test_errors_of_what_coremltools_wrote(name: str, tmp_path: Path) -> None:
    asked: Any = TypeAdapter(Compression).validate_python(CASES[name])
    compress(saved_network("iOS18"), asked, tmp_path / "m.mlpackage", "m:L00")
    against = read_model(network("iOS18").package_path)
    found = distortions(read_model(tmp_path / "m.mlpackage"), against)
    before, after = dense(network("iOS18")), dense(loaded(tmp_path / "m.mlpackage"))
    assert [d.name for d in found] == ["conv", "product"]
    for d in found:
        x, error = before[d.name], after[d.name] - before[d.name]
        assert d.sse == pytest.approx((error**2).sum(), rel=1e-5)
        assert d.energy == pytest.approx((x**2).sum(), rel=1e-5)
        assert 0 < d.sse < d.energy


UNKNOWN = {
    "pairs", "pairs of int8", "scaled", "scaled as a whole", "blocks of zeros",
    "blocks of zeros by input", "int8, palettes", "int8 by block, palettes",
    "int8 of one scale, k-means",
}  # fmt: skip


@pytest.mark.drawn
@pytest.mark.parametrize("name", CASES)
def test_what_a_scheme_reaches_is_what_coremltools_wrote(name: str, tmp_path: Path) -> None:
    """Or there is no yardstick, and the weight's record says for what."""
    asked: Any = TypeAdapter(Compression).validate_python(CASES[name])
    compress(saved_network("iOS18"), asked, tmp_path / "m.mlpackage", "m:L00")
    against = read_model(network("iOS18").package_path)
    weights = compare_weights(read_model(tmp_path / "m.mlpackage"), against, asked)
    assert [d.name for d in weights.distortions] == ["conv", "product"]
    for d in weights.distortions:
        assert d.scheme
        assert (d.reached is None) == (name in UNKNOWN)
        if d.error is not None and d.row_error is not None:
            assert 0.7 < d.error <= 1.25
            assert 0.3 < d.row_error <= 4


def package(folder: Path, *weights: tuple[str, Any]) -> Path:
    """A package whose operations multiply by weights in turn."""
    p, x = Program(), "x"
    shape = np.shape(weights[0][1])
    p.input("x", shape, "FLOAT16")
    for name, value in weights:
        array = np.asarray(value, np.float16)
        p.blob(name, "FLOAT16", array.shape, array.tobytes())
    for name, value in weights:
        p.op("mul", f"{name}_out", "FLOAT16", np.shape(value), x=x, y=name)
        x = f"{name}_out"
    p.output(x)
    folder.mkdir()
    return p.save(folder)


def test_names_that_cross_decide_and_the_rest_is_paired_in_order(tmp_path: Path) -> None:
    first = package(tmp_path / "a", ("u", [[3.0, 4.0]]), ("v", [[1.0, 2.0]]), ("w", [[1.0, 1.0]]))
    second = package(tmp_path / "b", ("v", [[1.0, 0.0]]), ("u", [[3.0, 5.0]]), ("z", [[0, 2.0]]))
    found = distortions(read_model(first), read_model(second))
    assert [(d.name, d.sse, d.energy) for d in found] == [
        ("u", 1.0, 34.0), ("v", 4.0, 1.0), ("w", 2.0, 4.0),
    ]  # fmt: skip
    assert [round(d.snr, 2) for d in found] == [15.31, -6.02, 3.01]
    other = package(tmp_path / "c", ("u", [[3.0, 4.0, 5.0]]))
    assert distortions(read_model(first), read_model(other)) == ()


def test_weights_of_other_names_are_those_of_the_same_operations(tmp_path: Path) -> None:
    first = package(tmp_path / "a", ("const_3", [[3.0, 4.0]]), ("const_5", [[1.0, 2.0]]))
    second = package(tmp_path / "b", ("const_5", [[3.0, 5.0]]), ("const_7", [[1.0, 2.0]]))
    found = distortions(read_model(first), read_model(second))
    assert [(d.name, d.sse) for d in found] == [("const_3", 1.0), ("const_5", 0.0)]


@pytest.mark.parametrize(
    ("mine", "exact", "sse"),
    [
        (-np.inf, -np.inf, 0.0),
        (-np.inf, -65504.0, 0.0),  # Either is what an exporter writes of a mask.
        (-np.inf, 1.0, np.inf),
        (np.nan, np.nan, np.nan),
    ],
)
def test_a_mask_of_minus_infinity_is_a_constant_like_any_other(
    tmp_path: Path, mine: float, exact: float, sse: float
) -> None:
    pair = [package(tmp_path / n, ("mask", [[0.0, x]])) for n, x in (("a", mine), ("b", exact))]
    (d,) = distortions(*map(read_model, pair))
    assert np.array_equal([d.sse], [sse], equal_nan=True)


def test_a_package_against_itself_lost_nothing(tmp_path: Path) -> None:
    path = package(tmp_path / "a", ("u", [[3.0, 4.0]]), ("v", [[0.0, 0.0]]))
    found = distortions(read_model(path), read_model(path))
    assert [(d.sse, d.snr) for d in found] == [(0.0, math.inf), (0.0, math.inf)]


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_what_is_not_finite_has_no_ratio(tmp_path: Path, bad: float) -> None:
    first = package(tmp_path / "a", ("u", [[bad, 4.0]]))
    second = package(tmp_path / "b", ("u", [[3.0, 4.0]]))
    for one, other in ((first, second), (second, first)):
        (found,) = distortions(read_model(one), read_model(other))
        assert not math.isfinite(found.sse)
        assert math.isnan(found.snr)


def test_rows_beyond_one_block_count_once(tmp_path: Path) -> None:
    """More elements than are compared at a time, the last block shorter than the others."""
    rng = np.random.default_rng(0)
    a, b = (rng.standard_normal((1001, 700)).astype(np.float16) for _ in range(2))
    first, second = package(tmp_path / "a", ("u", a)), package(tmp_path / "b", ("u", b))
    (found,) = distortions(read_model(first), read_model(second))
    wide, other = a.astype(np.float64), b.astype(np.float64)
    assert found.sse == pytest.approx(((wide - other) ** 2).sum(), rel=1e-5)
    assert found.energy == pytest.approx((other**2).sum(), rel=1e-5)


def palette(folder: Path, rows: int, depth: int = 0) -> Path:
    """Indices `[rows, 4]` of a weight that the program takes for `[2, 4]`, scaled `depth` times."""
    p, name = Program(), "w"
    p.input("x", (2, 4), "FLOAT16")
    p.blob("indices", "UINT8", (rows, 4), bytes(4 * rows))
    p.blob("lut", "FLOAT16", (1, 1, 256, 1), np.ones(256, np.float16).tobytes())
    p.blob("one", "FLOAT16", (1, 1), np.ones(1, np.float16).tobytes())
    p.op("constexpr_lut_to_dense", "w", "FLOAT16", (2, 4), indices="indices", lut="lut")
    for i in range(depth):
        p.op("constexpr_blockwise_shift_scale", f"w{i}", "FLOAT16", (2, 4), data=name, scale="one")
        name = f"w{i}"
    p.op("mul", "y", "FLOAT16", (2, 4), x="x", y=name)
    p.output("y")
    folder.mkdir()
    return p.save(folder)


@pytest.mark.parametrize(
    ("rows", "depth", "says"),
    [
        (3, 0, r"w is of shape \[2, 4\], but what is stored of it is of shape \[3, 4\]\.$"),
        (2, 9, r"w8 is expanded by more than 4 operations, one after another\.$"),
    ],
)
def test_a_package_that_cannot_be_is_one_sentence(
    tmp_path: Path, rows: int, depth: int, says: str
) -> None:
    model = read_model(palette(tmp_path / "a", rows, depth))
    with pytest.raises(AneError, match=says):
        distortions(model, model)


def test_what_only_one_package_has_is_missing_or_extra(tmp_path: Path) -> None:
    wide = np.ones((1, 9))
    first = package(tmp_path / "a", ("u", wide), ("v", wide))
    second = package(tmp_path / "b", ("w", wide), ("v_to_fp16", wide), ("z", wide))
    weights = compare_weights(read_model(first), read_model(second))
    assert (weights.missing, weights.extra) == (("w", "z"), ("u",))
    assert [d.name for d in weights.distortions] == ["v"]
    few = package(tmp_path / "c", ("u", [[1.0, 2.0]]), ("v", [[1.0, 2.0]]))
    assert compare_weights(read_model(package(tmp_path / "d", ("v", [[1.0, 2.0]]))),
                           read_model(few)).missing == ()  # fmt: skip


def test_a_constant_goes_by_its_own_name_not_by_what_it_yields(tmp_path: Path) -> None:
    """Compression passes name what takes its place after the constant: `op_1_palettized`."""
    compressed = package(tmp_path / "a", ("op_1", np.ones((1, 9))))
    plain = package(tmp_path / "b", ("var_1", np.ones((1, 9))))
    file, message = parse_package(plain)
    (function,) = message.mlProgram.functions.values()
    (block,) = function.block_specializations.values()
    (constant,) = (op for op in block.operations if op.outputs[0].name == "var_1")
    set_name(constant.attributes["name"], "op_1")
    file.write_bytes(message.SerializeToString())
    weights = compare_weights(read_model(compressed), read_model(plain))
    assert (weights.missing, weights.extra) == ((), ())


def test_elements_of_an_uncompressed_weight_are_compared_in_steps_of_fp16(tmp_path: Path) -> None:
    exact = np.full((3, 4), 1.5, np.float16)
    other = exact.copy()
    other[1, 2] += 5 * 2.0**-10
    pair = [read_model(package(tmp_path / n, ("u", w))) for n, w in (("a", other), ("b", exact))]
    (d,) = distortions(pair[0], pair[1])
    assert (d.scheme, d.rows) == ("fp16", (1, 1))
    assert d.row_error == pytest.approx((5 / 1.5) ** 2, rel=1e-3)


def test_a_ratio_needs_both_yardsticks() -> None:
    with pytest.raises(ValueError, match="one only"):
        Distortion("u", 1.0, 2.0, "fp16", 1.0)
    with pytest.raises(ValueError, match="a ratio or a row is negative"):
        Distortion("u", 1.0, 2.0, "fp16", 1.0, 1.0, (3, 2))
    assert Distortion("u", 0.0, 2.0, "fp16", 0.0, 0.0).error == 0.0
    assert Distortion("u", 1.0, 2.0).error is None
    assert Distortion("u", 1.0, 2.0, "fp16", 0.0, 0.0).error == math.inf
