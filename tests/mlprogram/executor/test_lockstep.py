"""Several inputs at once give what each gives alone, and decode a streamed weight once."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_ane.mlprogram.errors import ExecutionError
from pytest_ane.mlprogram.executor import Session
from pytest_ane.mlprogram.executor.weights import StreamedWeight
from pytest_ane.mlprogram.model import read_model
from tests.mlprogram.executor.test_weights import COLUMNS, ROWS, palette
from tests.mlprogram.packages import Program


@pytest.fixture(scope="module")
def shard(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two convolutions with a softmax between them: columns of one input must not mix."""
    program = Program()
    ranges = ((1, 1), (COLUMNS, COLUMNS), (1, 9), (1, 1))
    program.input("x", (1, COLUMNS, 1, 1), "FLOAT16", ranges, kind=65552)
    palette(program, "up", 4, 16, 4)
    program.op("conv", "h", "FLOAT16", (1, ROWS, None, 1), x="x", weight="up")
    program.const("axis", 2, "INT32")
    program.op("softmax", "s", "FLOAT16", (1, ROWS, None, 1), x="h", axis="axis")
    program.op("add", "y", "FLOAT16", (1, ROWS, None, 1), x="s", y="h")
    program.output("y", 65552)
    return program.save(tmp_path_factory.mktemp("lockstep"))


def inputs(lengths: list[int]) -> list[dict[str, np.ndarray]]:
    rng = np.random.default_rng(0)
    return [{"x": rng.standard_normal((1, COLUMNS, n, 1)).astype(np.float16)} for n in lengths]


@settings(max_examples=15)
@given(lengths=st.lists(st.integers(1, 5), min_size=1, max_size=5), budget=st.booleans())
def test_each_gets_what_it_gets_alone(shard: Path, lengths: list[int], budget: bool) -> None:
    session = Session(read_model(shard), memory_budget=0 if budget else None)
    together = session.predict_all(given := inputs(lengths))
    for one, x, length in zip(together, given, lengths, strict=True):
        assert one["y"].shape == (1, ROWS, length, 1)
        np.testing.assert_allclose(one["y"], session.predict(x)["y"], rtol=2e-3, atol=1e-2)


def test_a_streamed_weight_is_decoded_once_for_all(
    shard: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    columns: list[int] = []
    product = StreamedWeight.product

    def counted(self: StreamedWeight, x: Any) -> Any:
        columns.append(x.shape[2])
        return product(self, x)

    monkeypatch.setattr(StreamedWeight, "product", counted)
    Session(read_model(shard), memory_budget=0).predict_all(inputs([1, 4, 2]))
    assert columns == [7]


def test_values_inside_may_be_asked_for(shard: Path) -> None:
    session = Session(read_model(shard), memory_budget=0)
    first, second = session.predict_all(inputs([2, 3]), outputs=["x", "h"])
    assert (first["h"].shape, second["h"].shape) == ((1, ROWS, 2, 1), (1, ROWS, 3, 1))
    np.testing.assert_array_equal(first["x"], inputs([2, 3])[0]["x"])


def test_no_input_at_all(shard: Path) -> None:
    assert Session(read_model(shard)).predict_all([]) == []


def test_one_bad_input_among_good_ones(shard: Path) -> None:
    with pytest.raises(ExecutionError, match="'x'"):
        Session(read_model(shard)).predict_all([*inputs([1]), {}])


def test_a_product_of_constants_and_one_with_a_computed_bias(tmp_path: Path) -> None:
    """The first has no varying parameter, the second has two: neither is joined."""
    program = Program()
    rows = (1 << 20) // ROWS + 1  # Too large a product to be kept as a constant.
    program.input("x", (1, COLUMNS), "FLOAT16", kind=65552)
    program.input("bias", (ROWS,), "FLOAT16", kind=65552)
    program.blob("ones", "FLOAT16", (rows, COLUMNS), np.ones((rows, COLUMNS), "<f2").tobytes())
    palette(program, "w", 4, 16, 2)
    program.op("linear", "h", "FLOAT16", (rows, ROWS), x="ones", weight="w")
    program.op("linear", "y", "FLOAT16", (1, ROWS), x="x", weight="w", bias="bias")
    for name in ("h", "y"):
        program.output(name, 65552)
    session = Session(read_model(program.save(tmp_path)), memory_budget=0)
    given = [
        {"x": np.full((1, COLUMNS), n, np.float16), "bias": np.full(ROWS, n, np.float16)}
        for n in (1, 2)
    ]
    for one, x in zip(session.predict_all(given), given, strict=True):
        alone = session.predict(x)
        for name in ("h", "y"):
            np.testing.assert_array_equal(one[name], alone[name])
