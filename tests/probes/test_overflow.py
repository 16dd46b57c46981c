"""The first NaN or infinity: its operation, operands and reason; none of a right program."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pytest_ane.mlprogram.model import read_model
from pytest_ane.probes.cases import package_case
from pytest_ane.probes.overflow import first_overflow
from tests.mlprogram.executor.programs import build

Body = Callable[[Any, Any], Any]
HALF = np.float16
MASK = np.array([[0, -np.inf, 0, 0]], HALF)
FINITE = np.array([[0, -1e4, 0, 0]], HALF)
LOW = np.full((1, 4), -65504, HALF)


def normed(mb: Any, x: Any) -> Any:
    square = mb.mul(x=x, y=x, name="square_0")
    mean = mb.reduce_mean(x=square, axes=[1], keep_dims=True, name="mean")
    return mb.mul(x=x, y=mb.rsqrt(x=mean, epsilon=HALF(1e-3), name="scale"), name="y")


def scaled(mb: Any, x: Any) -> Any:
    small = mb.mul(x=x, y=HALF(2.0**-10), name="small")
    return normed(mb, small)


def masked(how: str, mask: Any) -> Body:
    def body(mb: Any, x: Any) -> Any:
        held = mb.const(val=mask, name="mask")
        scores = getattr(mb, how)(x=held, y=x, name="scores")
        return mb.softmax(x=scores, axis=-1, name="y")

    return body


def late(mb: Any, x: Any) -> Any:
    """A mask that overflows harmlessly, and a sum that does not."""
    scores = mb.sub(x=mb.const(val=LOW * FINITE.astype(bool), name="mask"), y=x, name="scores")
    soft = mb.softmax(x=scores, axis=-1, name="soft")
    return mb.add(x=soft, y=mb.reduce_sum(x=x, axes=[1], keep_dims=True, name="total"), name="y")


WRONG: dict[str, tuple[Body, list[float], str]] = {
    "squares": (normed, [1, 2, 3436, 3], "fp16 overflows in square_0 (11.8 million): "
                                         "3,436 squared"),
    "round squares": (normed, [1, 2, 10000, 3], "fp16 overflows in square_0 (100 million): "
                                                "10,000 squared"),
    "-inf times 0": (masked("mul", MASK), [1, 0, 1, 1], "mul scores gives NaN: "
                                                        "mask constant -inf times 0"),
    "lowest and more": (masked("sub", LOW), [32, 32, 32, 32], "fp16 overflows in scores "
                                                              "(-65,536): -65,504 - 32"),
    "all masked": (masked("add", MASK - HALF(np.inf)), [1, 2, 3, 4],
                   "softmax y gives NaN: softmax of scores, which holds -inf"),
    "a sum after a mask": (late, [30000, 30000, 30000, 1], "fp16 overflows in total (90,001): "
                                                           "reduce_sum of x"),
    "a weight of infinity": (
        lambda mb, x: mb.linear(x=x, weight=mb.const(val=np.full((2, 4), np.inf, HALF), name="w"),
                                name="y"),
        [1, -2, 0, 3], "linear y gives NaN: linear of x and w, which holds inf"),
    "0 / 0": (lambda mb, x: mb.real_div(x=x, y=x, name="y"), [1, 0, 2, 3],
              "real_div y gives NaN: 0 / 0"),
    "log": (lambda mb, x: mb.log(x=x, epsilon=HALF(0), name="y"), [1, -2, 2, 3],
            "log y gives NaN: log of -2"),
}  # fmt: skip
RIGHT: dict[str, tuple[Body, list[float]]] = {
    "scaled squares": (scaled, [1, 2, 3436, 3]),
    "small squares": (normed, [1, 2, 3, 4]),
    "mask of -inf that softmax takes": (masked("add", MASK), [1, 2, 3, 4]),
    "finite mask": (masked("mul", FINITE), [1, 0, 1, 1]),
    "some of the lowest": (masked("sub", LOW * FINITE.astype(bool)), [32, 32, 32, 32]),
}


def overflow(folder: Path, body: Body, x: list[float]) -> str:
    from coremltools.converters.mil import Builder as mb
    from coremltools.converters.mil.mil import types

    spec = [mb.TensorSpec((1, 4), types.fp16)]
    package = build(folder / "p.mlpackage", spec, lambda x: body(mb, x))
    call = {"x": np.array([x], np.float32)}
    case = package_case("gaussian", "one", [call], [{"y": call["x"]}], [])
    return first_overflow(read_model(package), [case])


@pytest.mark.parametrize("what", WRONG)
def test_the_first_is_named(what: str, tmp_path: Path) -> None:
    body, x, expected = WRONG[what]
    assert overflow(tmp_path, body, x) == expected


@pytest.mark.parametrize("what", RIGHT)
def test_of_a_right_program_none_is(what: str, tmp_path: Path) -> None:
    assert overflow(tmp_path, *RIGHT[what]) == ""
