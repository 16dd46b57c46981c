"""Prepared programs: loops and branches, and several inputs at once."""

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
from tests.mlprogram.executor.programs import written
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


X = np.float32([1, 2, 3])


def test_cond_branches_may_be_constants_and_outer_values(tmp_path: Path) -> None:
    body = """
        fp32 sum = reduce_sum(x = x);
        bool flag = greater(x = sum, y = fp32(0));
        tensor<fp32, [3]> doubled = mul(x = x, y = fp32(2));
        tensor<fp32, [3]> other = const()[val = tensor<fp32, [3]>([7, 8, 9])];
        tensor<fp32, [3]> y = cond(pred = flag) a() { } -> (doubled), b() { } -> (other);
    """
    prepared = written(tmp_path / "m.mlmodelc", body)
    assert prepared.predict({"x": X})["y"].tolist() == [2, 4, 6]
    assert prepared.predict({"x": -X})["y"].tolist() == [7, 8, 9]


def test_while_loop_counts_and_carries(tmp_path: Path) -> None:
    """Y = x 2^n, and 0 rounds give x itself."""
    body = """
        int32 left, tensor<fp32, [3]> y = while_loop(loop_vars = (n, x))
        (int32 i, tensor<fp32, [3]> a) { bool c = greater(x = i, y = int32(0)); } -> (c),
        (int32 i, tensor<fp32, [3]> a) {
            int32 j = sub(x = i, y = int32(1));
            tensor<fp32, [3]> b = mul(x = a, y = fp32(2));
        } -> (j, b);
    """
    inputs = "tensor<fp32, [3]> x, int32 n"
    prepared = written(tmp_path / "m.mlmodelc", body, "y, left", inputs)
    for rounds in (5, 0, 1):
        y, left = prepared.predict({"x": X, "n": np.int32(rounds)}).values()
        assert y.tolist() == (X * 2**rounds).tolist()
        assert left == 0


def test_nested_loops(tmp_path: Path) -> None:
    """Sum over i < 3 of the sum over j < i of 1: 0 + 1 + 2; outer values are seen inside."""
    body = """
        int32 n, fp32 y = while_loop(loop_vars = (int32(0), x))
        (int32 i, fp32 s) { bool c = less(x = i, y = int32(3)); } -> (c),
        (int32 i, fp32 s) {
            int32 m, fp32 r = while_loop(loop_vars = (int32(0), s))
            (int32 j, fp32 t) { bool d = less(x = j, y = i); } -> (d),
            (int32 j, fp32 t) {
                int32 k = add(x = j, y = int32(1));
                fp32 u = add(x = t, y = fp32(1));
            } -> (k, u);
            int32 o = add(x = i, y = int32(1));
        } -> (o, r);
    """
    found = written(tmp_path / "m.mlmodelc", body, inputs="fp32 x")
    assert found.predict({"x": np.float32(10)})["y"].tolist() == 13


def test_lists_collect_what_a_loop_computes(tmp_path: Path) -> None:
    body = """
        list<tensor<fp32, [3]>, ?> first = make_list(
            init_length = int32(4), dtype = string("fp32"), elem_shape = (int32(3)));
        int32 n, list<tensor<fp32, [3]>, ?> filled = while_loop(loop_vars = (int32(0), first))
        (int32 i, list<tensor<fp32, [3]>, ?> a) { bool c = less(x = i, y = int32(4)); } -> (c),
        (int32 i, list<tensor<fp32, [3]>, ?> a) {
            int32 j = add(x = i, y = int32(1));
            fp32 factor = cast(x = i, dtype = string("fp32"));
            tensor<fp32, [3]> value = mul(x = x, y = factor);
            list<tensor<fp32, [3]>, ?> b = list_write(ls = a, index = i, value = value);
        } -> (j, b);
        tensor<fp32, [2, 3]> y = list_gather(ls = filled, indices = tensor<int32, [2]>([3, 1]));
        tensor<fp32, [3]> third = list_read(ls = filled, index = int32(2));
    """
    y, third = written(tmp_path / "m.mlmodelc", body, "y, third").predict({"x": X}).values()
    assert y.tolist() == [(3 * X).tolist(), X.tolist()]
    assert third.tolist() == (2 * X).tolist()


def test_a_later_constant_does_not_take_an_inner_name(tmp_path: Path) -> None:
    """The inner `late` is 2x; a constant of that name follows outside."""
    body = """
        tensor<fp32, [3]> z = cond(pred = bool(false)) a() { } -> (x),
        b() {
            tensor<fp32, [3]> late = add(x = x, y = x);
            tensor<fp32, [3]> l2 = add(x = late, y = x);
        } -> (l2);
        fp32 late = const()[val = fp32(1000)];
        tensor<fp32, [3]> y = add(x = late, y = z);
    """
    y, z = written(tmp_path / "m.mlmodelc", body, "y, z").predict({"x": X}).values()
    assert z.tolist() == [3, 6, 9]
    assert y.tolist() == [1003, 1006, 1009]


LOOP = """
    fp32 k = const()[val = fp32(100)];
    int32 i, tensor<fp32, [3]> y = while_loop(loop_vars = (int32(0), x))
    c(int32 i0, tensor<fp32, [3]> k) { bool t = less(x = i0, y = int32(3)); } -> (t),
    d(int32 i0, tensor<fp32, [3]> k) {
        int32 j = add(x = i0, y = int32(1));
        tensor<fp32, [3]> kk = add(x = k, y = k);
    } -> (%s);
"""


def test_a_loop_variable_may_have_an_outer_constant_s_name(tmp_path: Path) -> None:
    """Doubled three times, whatever the constant k is."""
    found = written(tmp_path / "m.mlmodelc", LOOP % "j, kk").predict({"x": X})["y"]
    assert found.tolist() == [8, 16, 24]


@pytest.mark.parametrize("results", ["j", "j, kk, kk"])
def test_a_body_of_other_results_is_refused(tmp_path: Path, results: str) -> None:
    with pytest.raises(ExecutionError, match="while_loop needs a condition and a body of its 2"):
        written(tmp_path / "m.mlmodelc", LOOP % results)


def test_results_that_are_constants_are_arrays_of_their_type(tmp_path: Path) -> None:
    body = """
        fp32 a = const()[val = fp32(2.5)];
        fp32 b = const()[val = fp32(-1)];
        fp32 y = cond(pred = bool(true)) t() { } -> (a), f() { } -> (b);
    """
    for y in written(tmp_path / "m.mlmodelc", body, "y, a").predict({"x": X}).values():
        assert isinstance(y, np.ndarray)
        assert (y.dtype, y.shape, y.item()) == (np.float32, (), 2.5)


def test_cond_with_a_block_too_few_is_refused(tmp_path: Path) -> None:
    cond = "tensor<fp32, [3]> y = cond(pred = bool(true)) a() { } -> (x);"
    with pytest.raises(ExecutionError, match="cond needs two blocks"):
        written(tmp_path / "m.mlmodelc", cond)
