"""Palettes decoded from packed indices: bit for bit what one look-up for each element gives."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_ane.mlprogram.executor.palettes import Packed, count, decode

BITS = (1, 2, 3, 4, 6, 8)


def pack(elements: Any, bits: int) -> Packed:
    """Lowest bits first, one bit at a time."""
    stream = [(int(e) >> i) & 1 for e in elements.reshape(-1) for i in range(bits)]
    stream += [0] * (-len(stream) % 8)
    packed = [
        sum(b << i for i, b in enumerate(stream[j : j + 8])) for j in range(0, len(stream), 8)
    ]
    return Packed(np.array(packed, np.uint8), bits, elements.shape)


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


def test_the_example_of_the_documentation() -> None:
    """Indices 0, 3, 2, 1, 3 of 2 bits; the upper bits of the last byte are padding."""
    packed = Packed(np.array([0b01101100, 0b11], np.uint8), 2, (5,))
    assert np.asarray(packed).tolist() == [0, 3, 2, 1, 3]
    tables = np.array([[10.0, 11, 12, 13]])
    assert decode(packed, tables).tolist() == [10, 13, 12, 11, 13]


@pytest.mark.parametrize("bits", BITS)
def test_packing_is_that_of_the_documentation(bits: int) -> None:
    elements, packed, _ = random((3, 7), bits, 1)
    np.testing.assert_array_equal(pack(elements, bits).data, packed.data)
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


@pytest.mark.parametrize("bits", BITS)
@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_types(bits: int, dtype: Any) -> None:
    elements, packed, tables = random((8, 4096), bits, 2)
    expected = plain(elements, tables.astype(dtype))
    np.testing.assert_array_equal(decode(packed, tables.astype(dtype)), expected, strict=True)
    whole = np.arange(2 << bits).astype(np.uint8).reshape(2, -1)
    np.testing.assert_array_equal(decode(packed, whole), plain(elements, whole), strict=True)


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


def test_written_in_place() -> None:
    elements, packed, tables = random((8, 4096), 4, 2)
    block = np.empty((4, 4096), np.float32)
    assert decode(packed, tables, start=2, stop=6, out=block) is block
    np.testing.assert_array_equal(block, plain(elements, tables)[2:6])


def test_nan_and_infinity_and_negative_zero_are_values_like_others() -> None:
    packed = Packed(np.array([0b11100100] * 64, np.uint8), 2, (1, 256))
    result = decode(packed, np.array([[np.nan, np.inf, -np.inf, -0.0]], np.float32))
    assert np.isnan(result[0, 0::4]).all()
    assert np.signbit(result[0, 3::4]).all()


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


def test_bytes_that_do_not_fit() -> None:
    with pytest.raises(ValueError, match="3 bytes; 8 elements of 4 bits take 4"):
        Packed(np.zeros(3, np.uint8), 4, (4, 2))
    with pytest.raises(ValueError, match="elements of 5 bits"):
        Packed(np.zeros(5, np.uint8), 5, (8,))


@pytest.mark.parametrize("bits", BITS)
@pytest.mark.parametrize(("shape", "groups"), SHAPES)
def test_indices_are_counted_by_group(shape: tuple[int, ...], groups: int, bits: int) -> None:
    elements, packed, _ = random(shape, bits, groups)
    expected = [np.bincount(g, minlength=1 << bits) for g in elements.reshape(groups, -1)]
    np.testing.assert_array_equal(count(packed, groups), expected)
