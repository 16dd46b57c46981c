"""Weights within a memory budget are held in fp16, and give what decoded ones give."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import numpy as np
import pytest

from pytest_ane.mil import read_model
from pytest_ane.reference import Session, halves
from pytest_ane.reference.halves import HalfWeight, kernels
from tests.mil.packages import Program
from tests.reference.test_weights import COLUMNS, RNG, ROWS, conv, palette

BUDGET = 1 << 20
NUMBERS = RNG.standard_normal((ROWS, COLUMNS, 1, 1)).astype(np.float16)


def held(session: Session) -> list[str]:
    return [name for name, v in session._constants.items() if isinstance(v, HalfWeight)]


@pytest.mark.parametrize("positions", [1, 3, 8, 9, 40])
@pytest.mark.parametrize("samples", [1, 2])
def test_products(positions: int, samples: int) -> None:
    columns = RNG.standard_normal((samples, COLUMNS, positions)).astype(np.float32)
    found = HalfWeight.of(NUMBERS).product(columns)
    expected = NUMBERS.reshape(ROWS, COLUMNS).astype(np.float64) @ columns.astype(np.float64)
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-4)


def test_a_processor_without_fp16(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(halves, "kernels", cache(lambda: None))
    columns = RNG.standard_normal((1, COLUMNS, 1)).astype(np.float32)
    found = HalfWeight.of(NUMBERS).product(columns)
    expected = NUMBERS.reshape(ROWS, COLUMNS).astype(np.float32) @ columns
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-4)


def test_the_kernels_are_loaded_once_they_pay(monkeypatch: pytest.MonkeyPatch) -> None:
    """Which widen as numpy does, so that nobody can tell."""
    loaded: list[str] = []
    monkeypatch.setattr(halves, "kernels", cache(lambda: loaded.append("now") or kernels()))
    monkeypatch.setattr(halves, "_PATIENCE", 2 * NUMBERS.size)
    monkeypatch.setattr(halves._Numpy, "widened", 0)
    weight = HalfWeight.of(NUMBERS)
    for times in (1, 2, 3, 4, 5):
        np.testing.assert_array_equal(np.asarray(weight), NUMBERS.astype(np.float32))
        assert loaded == ["now"] * (times > 3)


@pytest.mark.parametrize("positions", [1, 20])
def test_a_session_that_holds_halves(tmp_path: Path, positions: int) -> None:
    program = Program()
    program.input("x", (1, COLUMNS, positions, 1), "FLOAT16", kind=65552)
    palette(program, "w", 8, 2, 4)
    program.blob("v", "FLOAT16", (ROWS, ROWS, 1, 1), NUMBERS[:, :ROWS].tobytes())
    program.op("conv", "h", "FLOAT16", (1, ROWS, positions, 1), x="x", weight="w")
    program.op("conv", "y", "FLOAT16", (1, ROWS, positions, 1), x="h", weight="v")
    program.output("y", 65552)
    model = read_model(program.save(tmp_path))
    session, dense = Session(model, memory_budget=BUDGET), Session(model)
    assert (held(session), held(dense)) == (["w"], [])  # `v` is too small to matter.
    assert session.weight_bytes == 2 * ROWS * COLUMNS + 4 * ROWS * ROWS
    x = RNG.standard_normal((1, COLUMNS, positions, 1)).astype(np.float16)
    names = ["h", "w"]
    found, expected = (s.predict({"x": x}, outputs=names) for s in (session, dense))
    np.testing.assert_array_equal(found["w"], expected["w"])
    np.testing.assert_allclose(found["h"], expected["h"], rtol=2e-3, atol=1e-2)


def test_a_kernel_of_two_positions_is_decoded(tmp_path: Path) -> None:
    assert held(Session(read_model(wide(tmp_path)), memory_budget=BUDGET)) == []


def test_a_weight_that_something_else_takes_is_decoded(tmp_path: Path) -> None:
    program = conv()
    program.op("add", "z", "FLOAT16", (ROWS, COLUMNS, 3, 1), x="w", y="x")
    program.output("z", 65552)
    model = read_model(program.save(tmp_path))
    assert held(Session(model, memory_budget=BUDGET)) == []


def wide(folder: Path) -> Path:
    """A convolution over two positions."""
    program = Program()
    program.input("x", (1, COLUMNS, 3, 1), "FLOAT16", kind=65552)
    shape = (ROWS, COLUMNS, 2, 1)
    program.blob("w", "FLOAT16", shape, RNG.standard_normal(shape).astype(np.float16).tobytes())
    program.op("conv", "y", "FLOAT16", (1, ROWS, 2, 1), x="x", weight="w")
    program.output("y", 65552)
    return program.save(folder)


def test_exact_arithmetic_holds_no_halves(tmp_path: Path) -> None:
    session = Session(read_model(conv().save(tmp_path)), "float64", memory_budget=BUDGET)
    assert held(session) == []
