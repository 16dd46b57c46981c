"""The kinds of inputs: literal values, and what holds of any shape."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from safetensors.numpy import save_file

from pytest_ane.manifest import Input
from pytest_ane.probes.inputs import Axes, Call, Shape, draw, kind_axes, picture
from pytest_ane.probes.seeded import generator

CALL = Call((0, "gaussian", "fixed shape"), "x")
M = -10_000.0
LITERAL = [-2.919868230819702, -2.3286900520324707, 2.3328683376312256]
SHAPES = st.lists(st.integers(1, 5), min_size=1, max_size=4).map(tuple)


def drawn(kind: str, shape: tuple[int, ...], call: Call = CALL, **options: object) -> list:
    values: list = draw(Input(kind=kind, **options), shape, call).tolist()  # type: ignore[arg-type]
    return values


def at(start: int, number: int = 0) -> Call:
    return Call(CALL.probe, "x", number, start)


def test_a_causal_mask() -> None:
    assert drawn("causal-mask", (1, 1, 2, 4)) == [[[[0, M, M, M], [0, 0, M, M]]]]
    assert drawn("causal-mask", (1, 1, 2, 4), at(1)) == [[[[0, 0, M, M], [0, 0, 0, M]]]]
    assert drawn("causal-mask", (4,), at(2), masked=-5.0) == [0, 0, 0, -5]
    assert drawn("causal-mask", (2, 4), at(2), window=2) == [[M, 0, 0, M], [M, M, 0, 0]]


def test_a_causal_mask_of_other_axes() -> None:
    queries_last = drawn("causal-mask", (1, 4, 1, 2), axis=1, position_axis=-1)
    assert queries_last == [[[[0, 0]], [[M, 0]], [[M, M]], [[M, M]]]]
    assert drawn("causal-mask", (2, 2, 2), axis=0, position_axis=1) == [
        [[0, 0], [0, 0]],
        [[M, M], [0, 0]],
    ]


def test_slots_of_a_cache_are_filled_round() -> None:
    # Position 5 is in slot 1, so slot 2 still holds position 2.
    assert drawn("causal-mask", (4,), at(5), window=3) == [0, 0, M, 0]
    assert drawn("one-hot", (2, 4), at(3)) == [[0, 0, 0, 1], [1, 0, 0, 0]]


def test_one_hot_rows_and_positions() -> None:
    assert drawn("one-hot", (2, 3)) == [[1, 0, 0], [0, 1, 0]]
    assert drawn("one-hot", (1, 3, 1), at(2)) == [[[0], [0], [1]]]
    assert drawn("positions", (1, 3), at(4)) == [[4, 5, 6]]
    assert drawn("positions", (1,), at(4)) == [4]
    assert drawn("positions", (2, 2), at(1), position_axis=0) == [[1, 1], [2, 2]]


def test_rope() -> None:
    cos = [[1, 1, 1, 1], [np.cos(1), np.cos(0.01), np.cos(1), np.cos(0.01)]]
    assert drawn("rope-cos", (1, 2, 4)) == pytest.approx(np.array([cos]), abs=1e-7)
    sin = [np.sin(3), np.sin(0.3)]
    assert drawn("rope-sin", (2,), at(3), theta=100.0, head=4) == pytest.approx(sin, abs=1e-7)
    pairs = drawn("rope-sin", (4,), at(3), theta=100.0, interleaved=True)
    assert pairs == pytest.approx([sin[0], sin[0], sin[1], sin[1]], abs=1e-7)


def test_routing_leaves_every_fourth_position_without_experts() -> None:
    weights = np.array(drawn("routing", (8, 5), active=2))
    assert (weights > 0).sum(axis=1).tolist() == [2, 0, 2, 2, 2, 0, 2, 2]
    assert weights.sum(axis=1) == pytest.approx([1, 0, 1, 1, 1, 0, 1, 1], abs=1e-6)
    assert drawn("routing", (5,), at(0, number=1), active=2) == [0] * 5


def test_ids_are_each_drawn_once_before_any_comes_again() -> None:
    calls = [drawn("ids", (1, 4), Call(CALL.probe, "x", n, 0, 4 * n), count=8) for n in range(3)]
    assert sorted(calls[0][0] + calls[1][0]) == [*range(8)]
    assert calls[0][0] != [0, 1, 2, 3]
    assert set(calls[2][0]) <= {*range(8)}


def test_images() -> None:
    gradient = np.array(drawn("image", (1, 3, 4, 6)))
    assert (gradient[..., 0, 0], gradient[..., -1, -1]) == pytest.approx((0, 255))
    assert np.all(np.diff(gradient, axis=3)[..., -1, :] >= 0) or len(np.unique(gradient)) > 8
    channels_last = np.array(drawn("image", (6, 8, 3)))
    assert channels_last[0, 0].tolist() == [0, 0, 0]
    assert channels_last[-1, -1].tolist() == [255, 255, 255]
    noise = np.array(drawn("image", (1, 3, 32, 32), at(0, number=1)))
    assert (noise.min(), noise.max()) == (0, 255)
    assert abs(noise.mean() - 127.5) < 5
    scaled = np.array(drawn("image", (1, 3, 4, 6), range=(-1.0, 1.0)))
    assert scaled == pytest.approx(gradient / 127.5 - 1, abs=1e-6)


def test_a_constant_from_each_kind_of_file(tmp_path: Path) -> None:
    array = np.array([[1.5, -2.0]], np.float32)
    np.save(tmp_path / "a.npy", array)
    np.savez(tmp_path / "a.npz", x=array)
    save_file({"x": array}, tmp_path / "a.safetensors")
    for name in ("a.npy", "a.npz#x", "a.safetensors#x"):
        assert drawn("constant", (1, 2), files=(str(tmp_path / name),)) == [[1.5, -2.0]]


FILES: dict[str, Callable[[Path], object]] = {
    "text.npy": lambda path: path.write_text("hello"),
    "nan.npy": lambda path: np.save(path, np.array([np.nan])),
    "object.npy": lambda path: np.save(path, np.array([{}]), allow_pickle=True),
    "words.npy": lambda path: np.save(path, np.array(["a"])),
    "x.npz": lambda path: np.savez(path, x=np.zeros(1)),
    "x.safetensors": lambda path: save_file({"x": np.zeros(1)}, path),
    "torn.safetensors": lambda path: path.write_bytes(b"\xff" * 9),
    "wide.npy": lambda path: np.save(path, np.zeros((1, 2))),
}


@pytest.mark.parametrize(
    ("file", "reason"),
    [
        ("absent.npy", "cannot be read .*No such file"),
        ("absent.safetensors#x", "cannot be read .*No such file"),
        ("text.npy", "cannot be read"),
        ("object.npy", "cannot be read"),
        ("torn.safetensors#x", "cannot be read"),
        ("x.npz#y", "has no array 'y'"),
        ("x.safetensors#y", "has no array 'y'"),
        ("nan.npy", "something else than finite numbers"),
        ("words.npy", "something else than finite numbers"),
        ("wide.npy", r"whose shape is \[1, 2\]; it takes \[1\]"),
    ],
)
def test_a_constant_that_is_none(tmp_path: Path, file: str, reason: str) -> None:
    name, _, _ = file.partition("#")
    if name in FILES:
        FILES[name](tmp_path / name)
    with pytest.raises(ValueError, match=reason):
        drawn("constant", (1,), files=(str(tmp_path / file),))


@pytest.mark.parametrize(
    ("shape", "flexible", "axes"),
    [
        ((1, 1, 8, 16), None, (2, 3)),  # A mask: queries, keys.
        ((1, 1, 1, 16), None, (None, 3)),
        ((1, 16, 1, 1), None, (None, 1)),
        ((1, 16, 1, 8), 3, (3, 1)),  # Positions last, and flexible.
        ((1, 16, 1, 1), 3, (3, 1)),
        ((1, 1, 1, 16), 3, (None, 3)),  # Flexible keys of one position.
        ((7,), None, (None, 0)),
        ((1,), None, (None, 0)),
        ((4, 8, 16), None, (1, 2)),
    ],
)
def test_axes_from_a_shape(shape: tuple[int, ...], flexible: int | None, axes: tuple) -> None:
    assert kind_axes(shape, flexible=flexible) == Axes(*axes)


@pytest.mark.parametrize(
    ("kind", "shape", "options", "reason"),
    [
        ("one-hot", (2, 3), {"axis": 2}, r"has the shape \[2, 3\], which has no axis 2"),
        ("one-hot", (2, 3), {"axis": 1, "position_axis": -1}, "axis 1 cannot be both"),
        ("one-hot", (3,), {"position_axis": 0}, "whose only axis is that of positions"),
        ("rope-cos", (2, 6), {"head": 4}, "are 6, and RoPE of head = 4 has 4 or 2"),
        ("rope-cos", (2, 5), {}, "are 5, and RoPE of head = 5"),
        ("routing", (2, 5), {"active": 6}, "has 5 experts along axis 1, and active = 6"),
    ],
)
def test_options_that_do_not_fit_a_shape(
    kind: str, shape: tuple[int, ...], options: dict, reason: str
) -> None:
    with pytest.raises(ValueError, match=reason):
        drawn(kind, shape, **options)


@given(SHAPES, st.integers(0, 99), st.floats(-9, 9), st.floats(0.01, 9))
def test_values_stay_in_their_bounds(
    shape: tuple[int, ...], number: int, low: float, extent: float
) -> None:
    call = at(0, number)
    for kind in ("uniform", "image"):
        values = np.array(drawn(kind, shape, call, range=(low, low + extent)))
        assert values.shape == shape
        assert np.all((np.float32(low) <= values) & (values <= np.float32(low + extent)))
    assert np.all(np.array(drawn("positive", shape, call, deviation=extent)) >= extent / 1025)


@given(st.integers(1, 4), st.integers(1, 9), st.integers(0, 20))
def test_a_mask_lets_a_position_see_what_was_written(rows: int, slots: int, start: int) -> None:
    shape, call = (1, rows, slots), at(start)
    axes = {"axis": 2, "position_axis": 1}
    mask = np.array(drawn("causal-mask", shape, call, **axes))
    write = np.array(drawn("one-hot", shape, call, **axes))
    assert np.all(write.sum(axis=2) == 1)
    assert np.all(mask[write == 1] == 0)
    seen = np.minimum(start + np.arange(rows) + 1, slots)
    assert np.array_equal((mask == 0).sum(axis=2)[0], seen)


@given(st.integers(1, 4), st.integers(1, 4), st.integers(0, 40), st.floats(2, 1e6))
def test_rope_is_on_the_unit_circle_and_goes_on_at_its_start(
    rows: int, pairs: int, start: int, theta: float
) -> None:
    options = {"axis": 1, "position_axis": 0, "theta": theta}
    cos, sin = (
        np.array(drawn(kind, (rows, 2 * pairs), at(start), **options))
        for kind in ("rope-cos", "rope-sin")
    )
    assert cos**2 + sin**2 == pytest.approx(np.ones_like(cos), abs=1e-6)
    whole = np.array(drawn("rope-cos", (start + rows, 2 * pairs), **options))
    assert np.array_equal(cos, whole[start:])


def test_normal_values_are_those_of_the_seed() -> None:
    """A literal: recorded evidence depends on them."""
    values = draw(Input(kind="normal", deviation=2.0), (1000,), CALL)
    assert values[:3].tolist() == LITERAL
    assert (values.mean(), values.std()) == pytest.approx((0, 2), abs=0.1)
    assert generator(*CALL.probe, "x", 0).random_raw() == CALL.bits.random_raw()


def save_picture(folder: Path, mode: str = "RGB", name: str = "a.png") -> str:
    """Red grows along the columns in steps of 60, blue along the rows; green is full."""
    from PIL import Image

    rows, columns = np.mgrid[0:4, 0:4] * 60
    pixels = np.stack([columns, np.full_like(rows, 255), rows], -1).astype(np.uint8)
    Image.fromarray(pixels).convert(mode).save(folder / name)
    return str(folder / name)


@pytest.mark.parametrize(
    ("shape", "red"),
    [
        ((8, 6, 3), lambda a: a[..., 0]),
        ((1, 3, 4, 4), lambda a: a[0, 0]),
        ((3, 16, 16), lambda a: a[0]),
        ((2, 8, 8, 4), lambda a: a[1, ..., 0]),
    ],
)
def test_a_picture_has_the_shape_and_the_range_of_its_input(
    tmp_path: Path, shape: Shape, red: Callable[[Any], Any]
) -> None:
    """Red grows along the columns alone, whatever the size, and green is full."""
    drawn = picture(save_picture(tmp_path), shape, -1.0, 1.0)
    assert (drawn.shape, drawn.dtype) == (shape, np.float32)
    plane = red(drawn)
    assert (np.diff(plane, axis=1) >= 0).all()
    assert np.ptp(plane, axis=0).max() < 1e-6
    assert plane[0, 0] == -1
    assert abs(plane[0, -1] - (2 * 180 / 255 - 1)) < 1e-6
    assert drawn.max() == 1


def test_a_picture_of_one_channel_is_grey(tmp_path: Path) -> None:
    file = save_picture(tmp_path)
    grey = picture(file, (4, 4))
    weights = 0.299 * 60 * np.mgrid[0:4, 0:4][1] + 0.587 * 255 + 0.114 * 60 * np.mgrid[0:4, 0:4][0]
    np.testing.assert_allclose(grey, weights, atol=1)
    np.testing.assert_array_equal(picture(file, (1, 1, 4, 4))[0, 0], grey)
    alpha = save_picture(tmp_path, "RGBA", "b.png")
    np.testing.assert_array_equal(picture(alpha, (4, 4)), grey)


def test_a_picture_that_cannot_be_had_is_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"is the picture .*no\.png, which does not exist"):
        picture(str(tmp_path / "no.png"), (4, 4))
    (tmp_path / "text.png").write_text("no picture")
    with pytest.raises(ValueError, match=r"text\.png, which is no picture"):
        picture(str(tmp_path / "text.png"), (4, 4))
    with pytest.raises(ValueError, match="and pictures have 1, 3 or 4 channels"):
        picture(save_picture(tmp_path), (1, 7, 8, 8))
