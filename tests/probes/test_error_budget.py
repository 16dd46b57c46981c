"""Calls on states: what goes back finds recurrent states as they were, and others as they are."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pytest_ane.backends import CpuBackend
from pytest_ane.make.coremltools_quiet import converter_notes, import_coremltools
from pytest_ane.mlprogram.arrays import FloatArray
from pytest_ane.probes.cases import Case, package_case
from pytest_ane.probes.error_budget import (
    Error,
    ErrorBudget,
    Loss,
    Run,
    measure_budget,
    measure_loss,
    run_cases,
    total_error,
    unexplained,
)
from tests.backends.coreml.test_runner import counter


def case(*steps: float, **of: object) -> Case:
    calls = tuple({"x": np.full(2, step, np.float32)} for step in steps)
    return Case("rewrite", "r", calls, lambda outputs: {"y": outputs["y"][None]}, {}, 1, 1.0, **of)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("of", "sums"),
    [
        ({}, [1, 3, 8]),
        ({"recurrent": ("s",), "restored": {2: 1}}, [1, 3, 6]),
        ({"recurrent": ("s",), "restored": {2: 0}}, [1, 3, 5]),
        ({"states": {"s": np.ones(2)}}, [2, 4, 9]),
    ],
)
def test_sums(tmp_path: Path, of: dict[str, object], sums: list[float]) -> None:
    runner = CpuBackend().load(counter(tmp_path))
    # Another sequence at the same time, on a state of its own.
    mine, other = run_cases(runner, [case(1, 2, 5, **of), case(7, 7)])
    assert mine.rows["y"][:, 0].tolist() == sums
    assert other.rows["y"][:, 0].tolist() == [7, 14]


WIDTH = 64


def rows(seed: int, length: int = 6, width: int = WIDTH) -> FloatArray:
    return np.random.default_rng(seed).standard_normal((length, width)).astype(np.float32)


def error(made: FloatArray, expected: FloatArray, path: FloatArray | None, **of: Any) -> Error:
    """The total error of one probe of two calls."""
    case = Case(
        kind="gaussian", name="g", calls=({}, {}), rows=lambda outputs: outputs,
        expected={"y": expected}, length=len(expected), input_max=1.0,
        residual={} if path is None else {"y": path}, **of,
    )  # fmt: skip
    return total_error(
        [case], [Run({"y": made}, (1, *[len(expected) - 1] * (len(expected) - 1)), {})]
    )


def test_an_error_is_relative_to_what_is_added() -> None:
    x, added = 100 * rows(0), rows(1)
    made = x + added
    made[2] += 0.5 * added[2]
    e = error(made, x + added, x)
    # Rounding a sum of 100 to fp16 takes some of it.
    assert 0.4 < e.greatest < 0.5
    assert e.rms == pytest.approx(e.greatest / math.sqrt(6), rel=1e-3)
    assert (e.probe, e.output, e.position, e.adds) == ("g", "y", 2, True)
    assert dict(e.lengths)[1] == 0
    assert error(made, x + added, None).greatest < 0.01


PATH, ADDED = rows(0), rows(1)
Y = PATH + ADDED


def changed(*where: Any, value: float) -> FloatArray:
    made = Y.copy()
    made[where] = value
    return made


def test_gain_is_of_the_contribution() -> None:
    for gain in (1.5, -1, 0):
        assert error(PATH + np.float32(gain) * ADDED, Y, PATH).gain == gain


def test_the_channels_that_are_hit_and_what_is_left_out() -> None:
    made = Y.copy()
    made[:, 16:20] += 1
    assert error(made, Y, PATH).channels == (16, 19)
    assert error(PATH + 1.5 * ADDED, Y, PATH).channels == ()
    made[:, 5] = np.nan
    assert math.isinf(error(made, Y, PATH).greatest)
    assert error(made, Y, PATH, left_out=(5,)).channels == (16, 19)
    nan = changed(slice(None), 5, value=np.nan)
    assert error(nan, Y, PATH, left_out=(5,)).greatest == 0
    row = changed(2, value=-1)
    assert error(row, Y, PATH).position == 2
    assert error(row, Y, PATH, undecided=(2,)).greatest == 0


def test_experts_that_are_hit() -> None:
    made = Y.copy()
    made[[1, 4]] = PATH[[1, 4]]
    routed = ((0,), (3,), (1,), (0,), (3,), (2,))
    e = error(made, Y, PATH, routed=routed)
    assert [expert for expert, value in e.experts if value > 0.5] == [3]


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_what_is_not_finite_is_infinitely_wrong(value: float) -> None:
    e = error(changed(3, 3, value=value), Y, PATH)
    assert (e.greatest, e.rms, e.position) == (math.inf, math.inf, 3)


def test_nothing_that_is_added_is_nothing_that_is_wrong() -> None:
    assert error(PATH * np.float32(1 + 1e-4), PATH, PATH).greatest < 1
    assert error(PATH + 0.1, PATH, PATH).greatest > 10


def test_rounding_the_output_is_no_error() -> None:
    x, added = 1000 * rows(0), rows(1)
    y = x + added
    assert error(y.astype(np.float16).astype(np.float32), y, x).greatest < 0.05


def package(
    path: Path, *, square: bool = False, scale: float = 1.0, gain: float = 1.0, groups: int = 1
) -> Path:
    """`y = x + gain * scale * w (x / rms(x))`, the squares in fp16 where `square` says so.

    `scale` is the weight's, `gain` an operation.
    """
    ct = import_coremltools()
    from coremltools.converters.mil import Builder as mb
    from coremltools.converters.mil.mil import types

    weight = np.random.default_rng(3).standard_normal((WIDTH, WIDTH, 1, 1)) / 8

    @mb.program(
        input_specs=[mb.TensorSpec((1, WIDTH, 4, 1), dtype=types.fp16)],
        opset_version=ct.target.iOS18,
    )
    def program(x: Any) -> Any:
        largest = mb.reduce_max(x=mb.abs(x=x), axes=[1], keep_dims=True)
        h = x if square else mb.real_div(x=x, y=largest)
        mean = mb.reduce_mean(x=mb.mul(x=h, y=h, name="square"), axes=[1], keep_dims=True)
        h = mb.mul(x=h, y=mb.rsqrt(x=mean, epsilon=np.float16(0)))
        w = mb.const(val=(scale * weight[:, : WIDTH // groups]).astype(np.float16), name="w")
        h = h if gain == 1 else mb.mul(x=h, y=np.float16(gain))
        return mb.add(x=x, y=mb.conv(x=h, weight=w, groups=groups), name="y")

    with converter_notes():
        ct.convert(
            program, convert_to="mlprogram", minimum_deployment_target=ct.target.iOS18,
            compute_precision=ct.precision.FLOAT16, skip_model_load=True,
        ).save(str(path))  # fmt: skip
    return path


@pytest.fixture(scope="module")
def packages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("packages")
    return {
        "right": package(folder / "right.mlpackage"),
        "scaled": package(folder / "scaled.mlpackage", scale=1.1),
        "squares": package(folder / "squares.mlpackage", square=True),
    }


def cases(packages: dict[str, Path], size: float) -> list[Case]:
    """A probe as large as asked for, with what the right package gives in float32."""
    x = (size * rows(5, 4)).T[None, :, :, None]
    outputs = CpuBackend("float32").load(packages["right"]).predict({"x": x})
    return [package_case("gaussian", "g", ({"x": x},), (outputs,))]


def budget(packages: dict[str, Path], plain: str, artifact: str | None, size: float) -> ErrorBudget:
    compressed = None if artifact is None else packages[artifact]
    return measure_budget(packages[plain], compressed, cases(packages, size))


def test_a_right_program_has_no_algebra(packages: dict[str, Path]) -> None:
    b = budget(packages, "right", None, 1.0)
    assert b.algebra is not None
    assert b.algebra.greatest < 1e-4
    assert b.rounding.greatest < 0.005
    assert (b.compression, b.overflow) == (None, "")


def test_another_function_is_algebra_and_nothing_else(packages: dict[str, Path]) -> None:
    b = budget(packages, "scaled", None, 1.0)
    assert b.algebra is not None
    assert b.algebra.greatest == pytest.approx(0.1, rel=0.02)
    assert b.algebra.gain == pytest.approx(1.1, rel=1e-3)
    assert b.rounding.greatest < 0.005


def test_other_weights_are_compression(packages: dict[str, Path]) -> None:
    b = budget(packages, "right", "scaled", 1.0)
    assert b.algebra is not None
    assert b.compression is not None
    assert b.algebra.greatest < 1e-4
    assert b.compression.greatest == pytest.approx(0.1, rel=0.02)


def palettized(source: Path, bits: int = 4) -> Path:
    """A copy whose weight has a table of so many bits, under another name."""
    ct = import_coremltools()
    config = ct.optimize.coreml.OpPalettizerConfig(nbits=bits, weight_threshold=0)
    path = source.with_name(f"{source.stem}-{bits}.mlpackage")
    with converter_notes():
        model = ct.models.MLModel(str(source), skip_model_load=True)
        config = ct.optimize.coreml.OptimizationConfig(config)
        ct.optimize.coreml.palettize_weights(model, config).save(str(path))
    return path


def test_the_program_that_was_compressed(packages: dict[str, Path], tmp_path: Path) -> None:
    """Its own weights do not matter: those of the uncompressed package are put in."""
    plain, probes = packages["right"], cases(packages, 1.0)

    def program(artifact: Path) -> Error:
        found = measure_budget(plain, artifact, probes, own=True)
        assert found.unpaired == ()
        assert found.program is not None
        return found.program

    assert program(palettized(plain, 2)) == Error(0.0, 0.0)
    assert program(palettized(packages["scaled"])) == Error(0.0, 0.0)
    assert program(palettized(packages["squares"])).greatest < 1e-4  # The same in float32.
    wrong = program(palettized(package(tmp_path / "wrong.mlpackage", gain=1.05)))
    assert wrong.rms == pytest.approx(0.05, rel=0.02)
    assert wrong.gain == pytest.approx(1.05, rel=1e-3)


def test_without_counterparts_nobody_knows_the_program(
    packages: dict[str, Path], tmp_path: Path
) -> None:
    artifact = palettized(package(tmp_path / "wide.mlpackage", groups=2))
    found = measure_budget(packages["right"], artifact, cases(packages, 1.0), own=True)
    assert (found.program, found.unpaired) == (None, ("w",))


def test_squares_that_overflow_are_rounding_and_named(packages: dict[str, Path]) -> None:
    b = budget(packages, "squares", None, 500.0)
    assert b.algebra is not None
    assert b.algebra.greatest < 1e-3
    assert b.rounding.greatest > 0.5
    assert b.overflow.startswith("fp16 overflows in square")
    assert budget(packages, "squares", None, 1.0).overflow == ""


def test_of_the_reference_itself_there_is_no_algebra(packages: dict[str, Path]) -> None:
    b = measure_budget(packages["right"], None, cases(packages, 1.0), against_itself=True)
    assert b.algebra is None


@pytest.mark.parametrize("bits", [4, 6, 8])
def test_what_a_file_loses_it_tells_itself(packages: dict[str, Path], bits: int) -> None:
    """Nothing is known but golden tensors: the compressed package and what it should give."""
    found = measure_loss(palettized(packages["right"], bits), cases(packages, 1.0))
    assert found.loss is not None
    assert found.beyond < 1
    assert 0.5 < found.loss.rms / found.explained < 1.5


@pytest.mark.parametrize(("gain", "bits", "least"), [(1.1, 6, 1.7), (1.1, 8, 3), (0.5, 4, 3)])
def test_another_function_is_more_than_the_file_can_lose(
    packages: dict[str, Path], tmp_path: Path, gain: float, bits: int, least: float
) -> None:
    wrong = palettized(package(tmp_path / "wrong.mlpackage", gain=gain), bits)
    assert measure_loss(wrong, cases(packages, 1.0)).beyond > least


def test_a_small_gain_shows_along_what_a_larger_constant_makes(
    packages: dict[str, Path], tmp_path: Path
) -> None:
    """Compression costs nearly as much, but in no direction."""
    wrong = palettized(package(tmp_path / "wrong.mlpackage", gain=1.02), 6)
    found = measure_loss(wrong, cases(packages, 1.0))
    assert found.loss is not None
    assert found.loss.rms < 1.5 * found.explained
    assert found.beyond > 1
    assert found.way == "along what a larger or smaller constant makes"


def test_a_bias_that_is_missing_shows_in_the_mean() -> None:
    rng = np.random.default_rng(0)
    expected, bias = rng.standard_normal((2, 32, 64)), 0.04 * rng.standard_normal(64)
    actual = expected[0] + 0.1 * rng.standard_normal((32, 64))
    draws = actual + 0.1 * rng.standard_normal((12, 32, 64))
    loss = Loss(expected[0], actual, 0 * actual, draws, actual[None])
    assert unexplained(loss)[1] < 1
    missing = loss._replace(expected=expected[0] + bias)
    assert unexplained(missing)[1:] == (pytest.approx(1.8, abs=0.4), "in the mean of all positions")


def test_what_is_compared_with_itself_loses_nothing(packages: dict[str, Path]) -> None:
    small = palettized(packages["right"])
    (case,) = cases(packages, 1.0)
    (run,) = run_cases(CpuBackend("float32").load(small), [case])
    found = measure_loss(small, [replace(case, expected=run.rows)])
    assert found.loss is not None
    assert found.loss.rms == 0 < found.explained


def test_a_loss_that_is_not_finite_is_beyond_everything() -> None:
    one = rows(0).astype(np.float64)
    draws = one + 0.1 * np.stack([rows(i) for i in range(1, 5)])
    assert unexplained(Loss(one, one, 0 * one, draws, one[None]))[1] < 1
    assert unexplained(Loss(one, one * np.nan, 0 * one, draws, one[None]))[1] == math.inf


def test_what_varies_together_may_differ_by_a_gain() -> None:
    """An image's numbers hang on few weights: draws tell how far all of them may grow at once."""
    rng, one = np.random.default_rng(0), np.ones((3, 64))
    gains = 1 + np.array([0.03, -0.03, 0.02, -0.02, 0.01, -0.01])[:, None, None]
    draws = one * gains + 1e-3 * rng.standard_normal((6, 3, 64))
    assert unexplained(Loss(1.02 * one, one, 0 * one, draws, one[None]))[1] < 1
    assert unexplained(Loss(1.2 * one, one, 0 * one, draws, one[None]))[1] > 1
