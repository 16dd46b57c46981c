"""Steps on few numbers that an interpreter runs as one give what they give one by one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from pytest_ane.build.coremltools_quiet import import_coremltools
from pytest_ane.mil.records import DType, TensorType
from pytest_ane.reference import Session
from pytest_ane.reference.dtypes import rounded
from pytest_ane.reference.halves import HalfWeight, kernels
from pytest_ane.reference.registry import lookup
from pytest_ane.reference.segments import ARITHMETIC, MOVES, WITH_WEIGHTS, Segment
from pytest_ane.reference.steps import Compute
from tests.reference.programs import build, session

pytestmark = pytest.mark.skipif(kernels() is None, reason="no fp16 in this processor")

NUMBERS = st.floats(width=16, allow_subnormal=True)
SHAPES = arrays.mutually_broadcastable_shapes(num_shapes=2, max_dims=4, max_side=5)


def norm(x: Any, gamma: Any) -> Any:
    """As ours are written: no square beyond fp16's range."""
    from coremltools.converters.mil import Builder as mb

    most = mb.reduce_max(x=mb.abs(x=x), axes=[1], keep_dims=True)
    scale = mb.clip(x=most, alpha=np.float16(0.0625), beta=np.float16(65504))
    small = mb.real_div(x=x, y=scale, name="small")
    mean = mb.reduce_mean(x=mb.mul(x=small, y=small), axes=[1], keep_dims=True)
    less = mb.inverse(x=scale, epsilon=np.float16(1e-4))
    root = mb.rsqrt(x=mb.add(x=mean, y=mb.mul(x=less, y=less)), epsilon=np.float16(1e-4))
    return mb.mul(x=mb.mul(x=small, y=root), y=gamma, name="normed")


def rotated(x: Any, gamma: Any) -> Any:
    """Halves of every head, turned."""
    from coremltools.converters.mil import Builder as mb

    heads = mb.reshape(x=x, shape=[3, 3, 64, 1])
    low, high = mb.split(x=heads, num_splits=2, axis=2)
    turned = mb.concat(values=[mb.mul(x=high, y=np.float16(-1)), low], axis=2)
    cosine = mb.slice_by_size(x=gamma, begin=[0, 0, 0, 0], size=[1, 64, 1, 1])
    cosine = mb.transpose(x=cosine, perm=[0, 3, 1, 2])
    return mb.add(x=mb.mul(x=heads, y=cosine), y=mb.sub(x=turned, y=cosine), name="normed")


def package(path: Path, body: Callable[..., Any]) -> Session:
    import_coremltools()
    from coremltools.converters.mil import Builder as mb
    from coremltools.converters.mil.mil import types

    specs = [mb.TensorSpec((1, 576, 1, 1), dtype=types.fp16) for _ in range(2)]
    return session(build(path, specs, body))


@pytest.fixture(scope="module")
def sessions(tmp_path_factory: pytest.TempPathFactory) -> tuple[Session, ...]:
    folder = tmp_path_factory.mktemp("segments")
    return tuple(package(folder / f"{body.__name__}.mlpackage", body) for body in (norm, rotated))


def inputs(scale: float = 1.0) -> dict[str, Any]:
    rng = np.random.default_rng(0)
    found = [rng.standard_normal((1, 576, 1, 1)) * scale for _ in range(2)]
    return {name: x.astype(np.float16) for name, x in zip(("x", "gamma"), found, strict=True)}


def one_by_one(fast: Session) -> Session:
    slow = Session(fast.model, fast.precision)
    slow.plan = replace(slow.plan, fused=None)
    return slow


def test_all_is_one_segment(sessions: tuple[Session, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    expected = [one_by_one(one).predict(inputs())["normed"] for one in sessions]
    for one in sessions:
        assert [type(step) for step in one.plan.fused or ()] == [Segment]
        for _ in range(2):
            one.predict(inputs())
    monkeypatch.delattr("pytest_ane.reference.steps.Compute.run")
    for one, wanted in zip(sessions, expected, strict=True):
        np.testing.assert_array_equal(one.predict(inputs())["normed"], wanted)


@pytest.mark.parametrize("scale", [0.0, 1e-6, 1.0, 1e4, np.inf, np.nan])
@pytest.mark.parametrize("precision", ["as-typed", "float32", "float64"])
def test_bit_for_bit(sessions: tuple[Session, ...], scale: float, precision: Any) -> None:
    with np.errstate(invalid="ignore", over="ignore"):
        given = inputs(scale)
    for one in sessions:
        fast = Session(one.model, precision)
        wanted = one_by_one(fast).predict(given)["normed"]
        for _ in range(3):
            np.testing.assert_array_equal(fast.predict(given)["normed"], wanted)


def test_what_is_between_can_be_asked_for(sessions: tuple[Session, ...]) -> None:
    one, names = sessions[0], ["small", "normed"]
    wanted = one_by_one(one).predict(inputs(), outputs=names)
    for _ in range(3):
        found = one.predict(inputs(), outputs=names)
        for name in names:
            np.testing.assert_array_equal(found[name], wanted[name])


def test_shapes_without_a_program_leave_room_for_those_with_one() -> None:
    """Several rows have none, for numpy sums them in another order."""
    part = replace(step("reduce_sum", "x", True, axes=[1]), last_use=(0,))
    segment = Segment(("reduce_sum",), (part,), (0,), (1,), frozenset(), True)
    for rows in (*range(2, 22), 1):
        values = [np.ones((rows, 5), np.float32), None]
        segment.run(values, frozenset())
        np.testing.assert_array_equal(values[1], np.full(rows, 5))
    assert [shapes for shapes, one in segment._programs.items() if one] == [((1, 5),)]


def test_results_are_not_written_to_by_the_next_call(sessions: tuple[Session, ...]) -> None:
    first = [sessions[0].predict(inputs())["normed"] for _ in range(3)][-1]
    copy = first.copy()
    sessions[0].predict(inputs(3.0))
    np.testing.assert_array_equal(first, copy)


def test_everything_that_may_be_part_of_one_is_known() -> None:
    from pytest_ane.reference.assembler import ASSEMBLE

    assert ASSEMBLE.keys() == ARITHMETIC | WITH_WEIGHTS
    assert all(lookup(name, "iOS18").moves for name in MOVES)


def step(name: str, inputs: Sequence[str], rounds: bool, **constants: Any) -> Compute:
    """One operation, whose inputs are slots 0 and on, and its result the slot after them."""
    kind = TensorType(DType.FP16 if rounds else DType.FP32)
    return Compute(
        what=name,
        compute=partial(lookup(name, "iOS18").compute, **constants),
        inputs=tuple((key, slot) for slot, key in enumerate(inputs)),
        outputs=((len(inputs), kind),),
        settle=(rounded if rounds else np.asarray,),
        last_use=(),
        rounds=rounds,
    )


def check(part: Compute, *operands: Any) -> None:
    """Both ways give the same bits, but for NaN's."""
    from pytest_ane.reference.assembler import assemble

    out = len(operands)
    takes = [(slot, x.shape) for slot, x in enumerate(operands)]
    program = assemble([part.what], [part], takes, [out])
    values = [*operands, None]
    with np.errstate(all="ignore"):
        part.run(values, frozenset(range(out)))
    if program is None:
        assert part.what.startswith("reduce") or not values[out].size
        return
    (found,) = program.run(operands)
    assert found.shape == values[out].shape
    np.testing.assert_array_equal(found, values[out])


def close(part: Compute, x: Any) -> None:
    """Both ways give the same but for the last bit of fp16."""
    from pytest_ane.reference.assembler import assemble

    program = assemble([part.what], [part], [(0, x.shape)], [1])
    assert program is not None
    values = [x, None]
    with np.errstate(all="ignore"):
        part.run(values, frozenset((0,)))
    np.testing.assert_allclose(program.run([x])[0], values[1], rtol=2**-10, atol=2**-24)


@given(x=arrays.arrays(np.float32, arrays.array_shapes(min_dims=1, max_dims=4), elements=NUMBERS))
def test_exponentials(x: Any) -> None:
    close(step("silu", "x", True), x)
    close(step("softmax", "x", True, axis=-1), x)
    close(step("softmax", "x", True, axis=x.ndim - 1), x)


@given(x=arrays.arrays(np.float32, 64, elements=st.floats(-104, 89, width=32)))
def test_exp_is_right_to_two_units_of_the_last_place(x: Any) -> None:
    from pytest_ane.reference.interpreter import Kind, run

    # softmax of (x, 0) is exp(x) / (exp(x) + 1) where x is the smaller one.
    below = -np.abs(x)
    rows = np.stack([below, np.zeros_like(below)], axis=1).reshape(-1)
    buffer = np.concatenate([rows, np.zeros_like(rows)])
    code = np.array([[Kind.SOFTMAX, rows.size, rows.size, 0, 2, 0, 0]])
    run(code, np.empty(0, np.int64), buffer)
    exact = np.exp(below.astype(np.float64))
    found = buffer[rows.size :: 2]
    np.testing.assert_allclose(found, exact / (exact + 1), rtol=2**-22, atol=2**-126)


@pytest.mark.parametrize("height", [1, 3, 4, 7, 576])
@pytest.mark.parametrize("name", ["conv", "linear"])
def test_products_with_weights_held_in_fp16(name: str, height: int) -> None:
    rng = np.random.default_rng(height)
    numbers = rng.standard_normal((height, 48)).astype(np.float16)
    x = rounded(rng.standard_normal((1, 48)))
    shape, lines = (
        ((height, 48, 1, 1), x.reshape(1, 48, 1, 1)) if name == "conv" else ((height, 48), x)
    )
    part = replace(
        step(name, "x", True, weight=HalfWeight.of(numbers.reshape(shape))),
        joins=2 if name == "conv" else -2,
    )
    close(part, lines)


def test_what_is_no_product_of_one_vector_is_none() -> None:
    from pytest_ane.reference.assembler import assemble

    weight = HalfWeight.of(np.ones((4, 8, 1, 1), np.float16))
    part = replace(step("conv", "x", True, weight=weight), joins=2)
    assert assemble(["conv"], [part], [(0, (1, 8, 1, 1))], [1]) is not None
    assert assemble(["conv"], [part], [(0, (1, 8, 2, 1))], [1]) is None
    for other in (replace(part, joins=None), step("conv", "x", True, weight=np.ones((4, 8, 1, 1)))):
        assert assemble(["conv"], [other], [(0, (1, 8, 1, 1))], [1]) is None


@given(data=st.data(), shapes=SHAPES, rounds=st.booleans(),
       name=st.sampled_from(["add", "maximum", "minimum", "mul", "real_div", "sub"]))  # fmt: skip
def test_arithmetic_of_two(data: st.DataObject, shapes: Any, rounds: bool, name: str) -> None:
    x, y = (data.draw(arrays.arrays(np.float32, s, elements=NUMBERS)) for s in shapes.input_shapes)
    check(step(name, "xy", rounds), x, y)
    check(step(name, "x", rounds, y=y), x)


@given(x=arrays.arrays(np.float32, arrays.array_shapes(max_dims=4), elements=NUMBERS),
       epsilon=st.floats(0, 1, width=32), rounds=st.booleans())  # fmt: skip
def test_arithmetic_of_one(x: Any, epsilon: float, rounds: bool) -> None:
    check(step("abs", "x", rounds), x)
    check(step("clip", "x", rounds, alpha=-epsilon, beta=2.5), x)
    check(step("inverse", "x", rounds, epsilon=epsilon), x)
    check(step("inverse", "x", rounds), x)
    check(step("rsqrt", "x", rounds, epsilon=epsilon), x)
    check(step("rsqrt", "x", rounds), x)
    check(step("sqrt", "x", rounds), x)


@given(count=st.integers(1, 3000), seed=st.integers(0, 9), keep=st.booleans(),
       name=st.sampled_from(["reduce_max", "reduce_mean", "reduce_min", "reduce_sum"]))  # fmt: skip
def test_reductions_of_one_row(count: int, seed: int, keep: bool, name: str) -> None:
    x = np.random.default_rng(seed).standard_normal((1, count, 1)).astype(np.float32)
    check(step(name, "x", False, axes=[1], keep_dims=keep), x)
    check(step(name, "x", False, axes=[-2, 0], keep_dims=keep), x)
    check(step(name, "x", False), x)


@given(x=arrays.arrays(np.float32, arrays.array_shapes(min_dims=1, max_dims=4), elements=NUMBERS),
       data=st.data())  # fmt: skip
def test_reductions_of_any_shape(x: Any, data: st.DataObject) -> None:
    axes = data.draw(
        st.lists(st.integers(-x.ndim, x.ndim - 1), min_size=1, unique_by=lambda a: a % x.ndim)
    )
    check(step("reduce_max", "x", True, axes=axes, keep_dims=True), x)
    check(step("reduce_sum", "x", True, axes=axes), x)
