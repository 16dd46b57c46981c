"""Weights that are streamed, and palettes decoded."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_ane.mlprogram.executor import Session, weights
from pytest_ane.mlprogram.executor.weights import HalfWeight, Packed, StreamedWeight, count, decode
from pytest_ane.mlprogram.model import read_model
from pytest_ane.mlprogram.records import MLModel
from tests.mlprogram.packages import Program

ROWS, COLUMNS = 128, 256
RNG = np.random.default_rng(7)
X = RNG.standard_normal((1, COLUMNS, 3, 1)).astype(np.float32)
NUMBERS = RNG.standard_normal((ROWS, COLUMNS, 1, 1)).astype(np.float16)


def palette(program: Program, name: str, bits: int, groups: int, axes: int) -> None:
    """`[ROWS, COLUMNS, 1, 1]` or `[ROWS, COLUMNS]` of palettes, a table for ROWS / groups rows."""
    ones = (1,) * (axes - 2)
    data = RNG.integers(0, 256, ROWS * COLUMNS * bits // 8, dtype=np.uint8).tobytes()
    program.blob(f"{name}_i", f"UINT{bits}", (ROWS, COLUMNS, *ones), data)
    tables = RNG.standard_normal((groups, 1, *ones, 1 << bits, 1)).astype(np.float16)
    program.blob(f"{name}_t", "FLOAT16", tables.shape, tables.tobytes())
    shape = (ROWS, COLUMNS, *ones)
    program.op("constexpr_lut_to_dense", name, "FLOAT16", shape,
               indices=f"{name}_i", lut=f"{name}_t")  # fmt: skip


def conv(bits: int = 4, groups: int = 16) -> Program:
    program = Program()
    program.input("x", (1, COLUMNS, 3, 1), "FLOAT16", kind=65552)
    palette(program, "w", bits, groups, 4)
    program.op("conv", "y", "FLOAT16", (1, ROWS, 3, 1), x="x", weight="w")
    program.output("y", 65552)
    return program


def both(program: Program, tmp_path: Path, x: np.ndarray = X) -> tuple[Session, Session]:
    """A session that holds all weights and one that holds none; their outputs are the same."""
    model = read_model(program.save(tmp_path))
    held, streaming = Session(model), Session(model, memory_budget=0)
    one, other = held.predict({"x": x})["y"], streaming.predict({"x": x})["y"]
    np.testing.assert_allclose(one, other, rtol=2e-3, atol=1e-2)
    assert np.abs(one).max() > 1
    return held, streaming


def streamed(session: Session) -> list[str]:
    return [name for name, v in session._constants.items() if type(v) is StreamedWeight]


@pytest.mark.parametrize("bits", [1, 2, 3, 4, 6, 8])
@pytest.mark.parametrize("groups", [1, 16])
def test_a_convolution_of_palettes(tmp_path: Path, bits: int, groups: int) -> None:
    held, streaming = both(conv(bits, groups), tmp_path)
    assert streamed(held) == []
    assert streamed(streaming) == ["w"]


def test_a_linear_layer(tmp_path: Path) -> None:
    program = Program()
    program.input("x", (2, 3, COLUMNS))
    palette(program, "w", 4, 8, 2)
    program.const("b", RNG.standard_normal(ROWS), "FLOAT32")
    program.op("linear", "y", shape=(2, 3, ROWS), x="x", weight="w", bias="b")
    program.output("y")
    x = RNG.standard_normal((2, 3, COLUMNS)).astype(np.float32)
    assert streamed(both(program, tmp_path, x)[1]) == ["w"]


def test_a_plain_weight_is_streamed_from_its_file(tmp_path: Path) -> None:
    program = Program()
    program.input("x", (1, COLUMNS, 3, 1), "FLOAT16", kind=65552)
    program.blob("w", "FLOAT16", NUMBERS.shape, NUMBERS.tobytes())
    program.op("conv", "y", "FLOAT16", (1, ROWS, 3, 1), x="x", weight="w")
    program.output("y", 65552)
    assert streamed(both(program, tmp_path)[1]) == ["w"]


def test_a_convolution_in_groups_gets_the_whole_weight(tmp_path: Path) -> None:
    program = Program()
    program.input("x", (1, 2 * COLUMNS, 3, 1), "FLOAT16", kind=65552)
    palette(program, "w", 4, 16, 4)
    program.const("g", 2, "INT32")
    program.op("conv", "y", "FLOAT16", (1, ROWS, 3, 1), x="x", weight="w", groups="g")
    program.output("y", 65552)
    both(program, tmp_path, np.concatenate([X, -2 * X], 1))


def test_the_budget_is_spent_in_program_order(tmp_path: Path) -> None:
    program = conv()
    palette(program, "v", 4, 16, 4)
    program.op("conv", "z", "FLOAT16", (1, ROWS, 3, 1), x="x", weight="v")
    program.output("z", 65552)
    model = read_model(program.save(tmp_path))
    assert streamed(Session(model, memory_budget=2 * ROWS * COLUMNS)) == ["v"]
    assert streamed(Session(model, memory_budget=4 * ROWS * COLUMNS)) == []


def test_a_streamed_weight_may_be_tapped(tmp_path: Path) -> None:
    model: MLModel = read_model(conv().save(tmp_path))
    found = Session(model, memory_budget=0).predict({"x": X}, outputs=["w"])["w"]
    np.testing.assert_array_equal(found, Session(model).predict({"x": X}, outputs=["w"])["w"])


def test_tiny_indices_in_the_program_itself(tmp_path: Path) -> None:
    """As coremltools writes weights of a few elements: not in `weight.bin`, one byte each."""
    program = Program()
    program.input("x", (1, 3))
    program.const("i", [[0, 15, 1], [2, 3, 4]], "UINT4")
    tables = np.arange(16, dtype=np.float32).reshape(1, 1, 16, 1)
    program.const("t", tables, "FLOAT32")
    program.op("constexpr_lut_to_dense", "w", shape=(2, 3), indices="i", lut="t")
    program.op("linear", "y", shape=(1, 2), x="x", weight="w")
    program.output("y")
    session = Session(read_model(program.save(tmp_path)))
    assert session.predict({"x": np.float32([[1, 1, 1]])})["y"].tolist() == [[16, 9]]


def test_rows_are_decoded_block_by_block(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pytest_ane.mlprogram.executor.weights._AT_ONCE", 24 * COLUMNS)
    both(conv(), tmp_path)


BUDGET = 1 << 20


def held(session: Session) -> list[str]:
    return [name for name, v in session._constants.items() if isinstance(v, HalfWeight)]


@pytest.mark.parametrize("kernels", [True, False], ids=["fp16", "a processor without fp16"])
@pytest.mark.parametrize("positions", [1, 3, 8, 9])
@pytest.mark.parametrize("samples", [1, 2])
def test_products(
    monkeypatch: pytest.MonkeyPatch, positions: int, samples: int, kernels: bool
) -> None:
    if not kernels:
        monkeypatch.setattr(weights, "load_kernels", lambda: None)
    columns = RNG.standard_normal((samples, COLUMNS, positions)).astype(np.float32)
    found = HalfWeight.of(NUMBERS).product(columns)
    expected = NUMBERS.reshape(ROWS, COLUMNS).astype(np.float64) @ columns.astype(np.float64)
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-4)


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


def test_a_weight_that_something_else_takes_is_decoded(tmp_path: Path) -> None:
    program = conv()
    program.op("add", "z", "FLOAT16", (ROWS, COLUMNS, 3, 1), x="w", y="x")
    program.output("z", 65552)
    model = read_model(program.save(tmp_path))
    assert held(Session(model, memory_budget=BUDGET)) == []


BITS = (1, 2, 3, 4, 6, 8)


def random(shape: tuple[int, ...], bits: int, groups: int, seed: int = 0) -> tuple[Any, Any, Any]:
    """Elements, the same packed, and tables; large ones are packed by numpy."""
    rng = np.random.default_rng(seed)
    elements = rng.integers(0, 1 << bits, shape).astype(np.uint8)
    stream = np.unpackbits(elements.reshape(-1, 1), axis=1, count=bits, bitorder="little")
    packed = Packed(np.packbits(stream, bitorder="little"), bits, shape)
    return elements, packed, rng.standard_normal((groups, 1 << bits)).astype(np.float32)


def plain(elements: Any, tables: Any) -> Any:
    rows = elements.shape[0] // len(tables)
    parts = (tables[g][elements[g * rows : (g + 1) * rows]] for g in range(len(tables)))
    return np.concatenate(list(parts))


@pytest.mark.parametrize("bits", BITS)
def test_packing_is_that_of_the_documentation(bits: int) -> None:
    elements, packed, _ = random((3, 7), bits, 1)
    np.testing.assert_array_equal(np.asarray(packed), elements)
    np.testing.assert_array_equal(packed.elements(5, 17), elements.reshape(-1)[5:17])


# A group in several calls, several groups in a call, groups of odd sizes, and tiny ones.
SHAPES = [((64, 4096), 1), ((64, 4096), 4), ((64, 4096), 64), ((12, 2400, 1, 1), 3), ((6, 35), 2),
          ((5, 0), 1), ((0, 5), 1), ((40,), 4), ((1,), 1)]  # fmt: skip


@pytest.mark.parametrize("bits", BITS)
@pytest.mark.parametrize(("shape", "groups"), SHAPES)
def test_as_one_by_one(shape: tuple[int, ...], groups: int, bits: int) -> None:
    elements, packed, tables = random(shape, bits, groups)
    expected = plain(elements, tables)
    result = decode(packed, tables)
    assert result.dtype == np.float32
    np.testing.assert_array_equal(result.view(np.uint32), expected.view(np.uint32), strict=True)


@settings(max_examples=60, deadline=None)
@given(
    st.sampled_from(BITS), st.sampled_from([1, 2, 3, 6]), st.sampled_from([1, 7, 8, 1000, 24000]),
    st.integers(0, 12), st.integers(0, 12),
)  # fmt: skip
def test_rows(bits: int, groups: int, width: int, one: int, other: int) -> None:
    start, stop = sorted((one, other))
    elements, packed, tables = random((12, width), bits, groups)
    result = decode(packed, tables, start=start, stop=stop)
    np.testing.assert_array_equal(result, plain(elements, tables)[start:stop], strict=True)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"tables": np.zeros((1, 8))}, r"tables \(1, 8\) for indices of 4 bits"),
        ({"tables": np.zeros((3, 16))}, "3 tables do not divide 4 rows"),
        ({"tables": np.zeros((0, 16))}, "0 tables"),
        ({"start": 3, "stop": 2}, "rows 3 to 2 of 4"),
        ({"stop": 5}, "rows 0 to 5 of 4"),
    ],
)
def test_what_does_not_fit(arguments: dict[str, Any], message: str) -> None:
    packed = Packed(np.zeros(4, np.uint8), 4, (4, 2))
    with pytest.raises(ValueError, match=message):
        decode(packed, **{"tables": np.zeros((1, 16)), **arguments})


def test_packed_elements() -> None:
    with pytest.raises(ValueError, match="3 bytes; 8 elements of 4 bits take 4"):
        Packed(np.zeros(3, np.uint8), 4, (4, 2))
    with pytest.raises(ValueError, match="elements of 5 bits"):
        Packed(np.zeros(5, np.uint8), 5, (8,))
    # Indices 0, 3, 2, 1, 3 of 2 bits; the upper bits of the last byte are padding.
    packed = Packed(np.array([0b01101100, 0b11], np.uint8), 2, (5,))
    assert np.asarray(packed).tolist() == [0, 3, 2, 1, 3]
    tables = np.array([[10.0, 11, 12, 13]])
    assert decode(packed, tables).tolist() == [10, 13, 12, 11, 13]


@pytest.mark.parametrize("bits", BITS)
@pytest.mark.parametrize(("shape", "groups"), SHAPES)
def test_indices_are_counted_by_group(shape: tuple[int, ...], groups: int, bits: int) -> None:
    elements, packed, _ = random(shape, bits, groups)
    expected = [np.bincount(g, minlength=1 << bits) for g in elements.reshape(groups, -1)]
    np.testing.assert_array_equal(count(packed, groups), expected)
