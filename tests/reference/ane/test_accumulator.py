"""The quick kernel gives what plain integers give, on every kind of number."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_ane.reference.ane.accumulator import Weight, sums
from tests.reference.ane import plain

SUBNORMAL = st.integers(1, 0x3FF)
SMALL = st.integers(0x0400, 0x2BFF)
MIDDLE = st.integers(0x2C00, 0x4FFF)
LARGE = st.integers(0x5000, 0x7BFF)
SPECIAL = st.sampled_from([0x0000, 0x7C00, 0x7E00, 0x7FFF])
KINDS = (SUBNORMAL, SMALL, MIDDLE, LARGE, SPECIAL)
Patterns = npt.NDArray[np.uint16]


@st.composite
def patterns(draw: st.DrawFn, *shape: int) -> Patterns:
    """Numbers of either sign, of one kind or of all of them."""
    kind = draw(st.sampled_from([*KINDS, st.one_of(*KINDS), MIDDLE, SMALL]))
    count = int(np.prod(shape))
    positive = draw(st.lists(kind, min_size=count, max_size=count))
    signs = draw(st.lists(st.sampled_from([0, 0x8000]), min_size=count, max_size=count))
    return np.array([p | s for p, s in zip(positive, signs, strict=True)], np.uint16).reshape(shape)


@st.composite
def operands(draw: st.DrawFn) -> tuple[Patterns, Patterns, Patterns]:
    """Weight `[B, O, K]`, vectors `[B, P, K]` and bias `[B, O]`."""
    b, o, p, k = (draw(st.integers(1, n)) for n in (2, 9, 5, 40))
    return draw(patterns(b, o, k)), draw(patterns(b, p, k)), draw(patterns(b, o))


def check(weight: Patterns, vectors: Patterns, bias: Patterns, factors: Weight) -> None:
    with np.errstate(all="ignore"):
        x, start = vectors.view(np.float16).astype(np.float32), bias.view(np.float16)
        computed = sums(factors, x, start)
        found = computed.values.astype(np.float16).view(np.uint16)
    mask = computed.may_overflow
    for b, o, p in np.ndindex(computed.values.shape):
        row, vector = weight[b, o].tolist(), vectors[b, p].tolist()
        expected, depends = plain.total(row, vector, int(bias[b, o]))
        assert (int(found[b, o, p]), mask is not None and bool(mask[b, o, p])) == (
            expected,
            depends,
        )


@given(operands())
@settings(max_examples=100, deadline=None)
def test_any_operands(drawn: tuple[Patterns, Patterns, Patterns]) -> None:
    weight, vectors, bias = drawn
    check(weight, vectors, bias, Weight.of(weight))


@given(operands())
@settings(max_examples=100, deadline=None)
def test_factors_held_as_float32(drawn: tuple[Patterns, Patterns, Patterns]) -> None:
    weight, vectors, bias = drawn
    with np.errstate(all="ignore"):
        wide = weight.view(np.float16).astype(np.float32)
    check(weight, vectors, bias, Weight.of(wide))


@given(st.integers(1, 70), st.integers(-4, 4), st.booleans(), st.randoms(use_true_random=False))
@settings(max_examples=60, deadline=None)
def test_near_the_limit(count: int, steps: int, cancels: bool, random: object) -> None:
    """Sums of about +-32768: products of 1 and 32752 / count, and some of the other sign."""
    rng = np.random.default_rng(random.getrandbits(32))  # type: ignore[attr-defined]
    vectors = np.full((1, 2, count), np.float16(32768 / count)).view(np.uint16)
    vectors = (vectors + rng.integers(-2, 3, vectors.shape)).astype(np.uint16)
    weight = np.full((1, 4, count), 0x3C00, np.uint16)
    weight[:, 2:] |= 0x8000
    if cancels:
        weight[..., :: max(count // 3, 1)] ^= 0x8000
    bias = np.full((1, 4), np.float16(steps * 8.0)).view(np.uint16)
    check(weight, vectors, bias, Weight.of(weight))


@pytest.mark.parametrize("width", [1, 15, 16, 33, 576, 2048])
@pytest.mark.parametrize(("rows", "count"), [(4, 2), (5, 3), (1, 1), (9, 8)])
def test_long_sums_of_ordinary_numbers(rows: int, count: int, width: int) -> None:
    """Against int64, of the same rounded products, on the paths for tiles and for single ones."""
    rng = np.random.default_rng(width)
    weight = (rng.standard_normal((1, rows, width)) * 0.1).astype(np.float16)
    vectors = rng.standard_normal((1, count, width)).astype(np.float16)
    computed = sums(Weight.of(weight), vectors)
    w, x = weight[0].astype(np.float64), vectors[0].astype(np.float64)
    product = w[:, None] * x[None] * 2.0**16
    rounded = np.copysign(np.floor(np.abs(product) + 0.5), product)
    exponents = [np.maximum(np.frexp(np.abs(n))[1] - 1, -14) for n in (w, x)]
    kept = exponents[0][:, None] + exponents[1][None] > -17
    total = (rounded * kept).astype(np.int64).sum(-1)
    expected = [[plain.r16(int(t) * plain.LSB) for t in row] for row in total]
    assert computed.values[0].astype(np.float16).view(np.uint16).tolist() == expected
    assert computed.may_overflow is None
    assert computed.products == rows * count * width


def test_overflow_that_depends_on_the_order_is_named() -> None:
    """20000 + 20000 - 20000: infinite in this order, 20000 in another."""
    weight = Weight.of(np.array([[[1, 1, -1], [1, 1, 1], [1, 0, -1]]], np.float16))
    computed = sums(weight, np.full((1, 1, 3), 20000, np.float16))
    assert computed.values[0, :, 0].tolist() == [np.inf, np.inf, 0]
    assert computed.may_overflow is not None
    assert computed.may_overflow[0, :, 0].tolist() == [True, False, False]
