"""Sums in the accumulator, and what they lose."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from pytest_ane.mlprogram.executor.ane._fp16 import r16
from pytest_ane.mlprogram.executor.ane.accumulator import Columns, Weight, sums
from tests.mlprogram.executor.ane import plain

Patterns = npt.NDArray[np.uint16]


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
    agree(weight, vectors, bias)


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


def exact(weight: Patterns, vectors: Patterns, bias: Patterns) -> tuple[Patterns, np.ndarray]:
    """The rules in int64, all outputs `[B, O, P]` at once: patterns, and where the order decides.

    Positive terms first and negative terms first are the extremes of all orders.
    """
    (sw, mw, ew), (sx, mx, ex) = fields(weight[:, :, None]), fields(vectors[:, None])
    e = ew + ex
    shift = 4 - e
    left, right = mw * mx << np.maximum(-shift, 0), np.maximum(shift, 1)
    size = np.where(shift <= 0, left, (mw * mx + (1 << right - 1)) >> right)
    terms = np.where(e <= -17, 0, sw * sx * size)
    start = np.vectorize(lambda n: plain.half_away(plain.value(int(n)) / plain.LSB))(bias)[
        ..., None
    ]
    partial = np.concatenate([np.zeros_like(terms[..., :1]), np.cumsum(terms, -1)], -1)
    partial += start[..., None]
    beyond = np.abs(partial) >= plain.LIMIT
    first = np.take_along_axis(partial, beyond.argmax(-1)[..., None], -1)[..., 0]
    total = np.where(beyond.any(-1), np.sign(first) * 2**40, partial[..., -1])
    low, high = (start + np.where(terms * sign > 0, terms, 0).sum(-1) for sign in (-1, 1))
    last, begun = partial[..., -1], np.abs(start) >= plain.LIMIT
    up = np.where(high >= plain.LIMIT, 1, np.where(last <= -plain.LIMIT, -1, 0))
    down = np.where(low <= -plain.LIMIT, -1, np.where(last >= plain.LIMIT, 1, 0))
    outputs = np.vectorize(lambda n: plain.r16(int(n) * plain.LSB))(total)
    return outputs.astype(np.uint16), ~begun & (up != down)


def fields(numbers: Patterns) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Sign, mantissa and exponent of patterns."""
    n = numbers.astype(np.int64)
    field = n >> 10 & 31
    quiet = np.where((field == 31) & (n & 0x3FF > 0), 0x200, 0)
    mantissa = n & 0x3FF | quiet | np.where(field > 0, 1024, 0)
    return np.where(n & 0x8000, -1, 1), mantissa, np.maximum(field, 1) - 15


RANGES = {
    "any": (0x0000, 0x7FFF), "subnormal": (0, 0x3FF), "small": (0x0400, 0x2BFF),
    "ordinary": (0x2400, 0x43FF), "large": (0x4400, 0x5BFF), "beyond": (0x7000, 0x7FFF),
    "dropped or not": (0x0C00, 0x1FFF),
}  # fmt: skip


@given(
    st.tuples(*(st.integers(1, n) for n in (3, 9, 70, 300))),
    st.tuples(*(st.sampled_from(sorted(RANGES)) for _ in range(2))),
    st.sampled_from(["none", *sorted(RANGES)]),
    st.integers(0, 2**32 - 1),
)
@settings(max_examples=60, deadline=None)
@example((2, 9, 70, 1), ("large", "large"), "beyond", 0)
@example((1, 8, 4, 40), ("ordinary", "beyond"), "any", 1)
@example((3, 5, 3, 300), ("large", "ordinary"), "large", 2)
@example((1, 4, 2, 64), ("dropped or not", "dropped or not"), "subnormal", 3)
@example((2, 1, 70, 17), ("any", "any"), "none", 4)
@pytest.mark.slow
def test_any_shape(
    shape: tuple[int, int, int, int], kinds: tuple[str, str], biased: str, seed: int
) -> None:
    """Groups, 1 to 70 positions, sums of 1 to 300 products, numbers and biases of every range."""
    rng = np.random.default_rng(seed)
    b, o, p, k = shape

    def drawn(kind: str, *size: int) -> Patterns:
        low, high = RANGES[kind]
        signs = rng.choice(np.array([0, 0x8000]), size) * rng.integers(0, 2)
        return (rng.integers(low, high + 1, size) | signs).astype(np.uint16)

    weight, vectors = drawn(kinds[0], b, o, k), drawn(kinds[1], b, p, k)
    bias = np.zeros((b, o), np.uint16) if biased == "none" else drawn(biased, b, o)
    agree(weight, vectors, bias)


def agree(weight: Patterns, vectors: Patterns, bias: Patterns) -> None:
    """Factors held as patterns and as float32 give the exact outputs, each bit."""
    expected, depends = exact(weight, vectors, bias)
    with np.errstate(all="ignore"):
        x = vectors.view(np.float16).astype(np.float32)
        wide = weight.view(np.float16).astype(np.float32)
    for factors in (Weight.of(weight), Weight.of(wide)):
        computed = sums(factors, x, bias.view(np.float16) if bias.any() else None)
        np.testing.assert_array_equal(computed.values.astype(np.float16).view(np.uint16), expected)
        np.testing.assert_array_equal(computed.mask, depends)
        assert computed.infinite == int(np.isinf(computed.values).sum())


@pytest.mark.parametrize("exponent", [-12, -9, -6, -3, 0, 2, 3])
def test_every_pair_of_mantissas_rounds_exactly(exponent: int) -> None:
    """One product, less the nearest fp16 number below it, so that no bit of it is rounded away.

    Ties among them, and products up to the largest that the fused addition rounds.
    """
    rng = np.random.default_rng(0)
    w = np.arange(1024, 2048) * 2.0**-10
    x = rng.integers(1024, 2048, 24) * 2.0 ** (exponent - 10) * rng.choice([-1, 1], 24)
    w, x = (n.reshape(-1) for n in np.meshgrid(w, x))
    product = w * x * 2**16
    rounded = np.copysign(np.floor(np.abs(product) + 0.5), product)
    near = np.floor(w * x * 2**10) / 2**10
    near = near.astype(np.float16).astype(np.float64)
    factors = np.stack([w, np.full_like(w, -1)], -1)[:, None].repeat(4, 1)
    vectors = np.stack([x, near], -1)[:, None].repeat(2, 1)
    computed = sums(Weight.of(factors.astype(np.float16)), vectors.astype(np.float16))
    expected = (rounded - near * 2**16) / 2**16
    np.testing.assert_array_equal(r16(expected), expected)
    for o, p in np.ndindex(4, 2):
        np.testing.assert_array_equal(computed.values[:, o, p], r16(expected))


def test_shapes_that_do_not_fit() -> None:
    weight = Weight.of(np.ones((1, 4, 3), np.float16))
    for shape in ((1, 2, 4), (2, 2, 3)):
        with pytest.raises(ValueError, match="do not fit"):
            sums(weight, np.ones(shape, np.float32))


@pytest.mark.parametrize("dtype", [np.float16, np.float32])
def test_all_products_are_counted(dtype: type) -> None:
    rng = np.random.default_rng(0)
    w = (rng.standard_normal((2, 3, 20)) * 2.0 ** rng.uniform(-24, 2, (2, 3, 20))).astype(
        np.float16
    )
    x = (rng.standard_normal((2, 2, 20)) * 2.0 ** rng.uniform(-24, 2, (2, 2, 20))).astype(
        np.float16
    )
    w[0, 0, 0] = 0
    measured: list[float] = Columns.of(Weight.of(w.astype(dtype))).losses(x).tolist()
    products = dropped = 0
    size = lost = 0.0
    for b, o, p, k in np.ndindex(2, 3, 2, 20):
        product = abs(float(w[b, o, k]) * float(x[b, p, k]))
        patterns = (int(n.view(np.uint16)) for n in (w[b, o, k], x[b, p, k]))
        is_dropped = product > 0 and sum(plain.parts(n)[2] for n in patterns) <= -17
        products, size = products + (product > 0), size + product
        dropped, lost = dropped + is_dropped, lost + product * is_dropped
    assert measured[:2] == [products, dropped]
    assert 0 < dropped < products
    assert measured[2:] == pytest.approx([size, lost])
