"""Candidates for operations without a rule: how many recorded rows each of them reproduces.

`python -m benchmarks.ane_arithmetic --rows FILE.csv` prints them. One that reproduces all rows of
an operation is what its rule should be. They know the operands of `pytest-ane first-contact`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from benchmarks import ane_arithmetic as rows
from pytest_ane.mlprogram.arrays import DoubleArray, FloatArray
from pytest_ane.mlprogram.executor.ane._activations import exp, inverse
from pytest_ane.mlprogram.executor.ane._fp16 import decode, r16
from pytest_ane.mlprogram.executor.ane.accumulator import Weight, sums
from pytest_ane.mlprogram.executor.ane.products import scaled_after

Operands = Mapping[str, Any]


def serial(x: FloatArray) -> float:
    """Sum in fp16, one after the other."""
    total = 0.0
    for number in x.tolist():
        total = float(r16(total + number))
    return total


def tree(x: FloatArray) -> float:
    """Sum in fp16, neighbours first, then neighbours of those."""
    while len(x) > 1:
        x = r16(np.append(x, np.zeros(len(x) % 2)).reshape(-1, 2).astype(np.float64).sum(1))
    return float(x[0])


def wide(x: FloatArray) -> float:
    """Sum without rounding."""
    return float(x.astype(np.float64).sum())


def accumulated(x: FloatArray, weight: float = 1) -> float:
    """Sum in the accumulator of Q15.16, of products with a weight."""
    factors = np.full((1, 1, len(x)), weight, np.float32)
    return float(sums(Weight.of(factors), x[None, None]).values.item())


SUMS: Mapping[str, Callable[[FloatArray], float]] = {
    "fp16, one after the other": serial, "fp16, a tree": tree, "wide, rounded once": wide,
    "Q15.16": accumulated,
}  # fmt: skip


def mean_of(total: Callable[[FloatArray], float]) -> Callable[[FloatArray], float]:
    """A sum rounded to fp16, times 1/N rounded to fp16."""
    return lambda x: float(r16(total(x))) * float(np.float16(1 / len(x)))


MEANS: Mapping[str, Callable[[FloatArray], float]] = {
    **{f"{name}, times 1/N": mean_of(total) for name, total in SUMS.items()},
    "wide, divided by N, rounded once": lambda x: wide(x) / len(x),
    "Q15.16 of products with 1/N": lambda x: accumulated(x, float(np.float16(1 / len(x)))),
}


def reduction(compute: Callable[[FloatArray], float]) -> Callable[[Operands], Any]:
    """Of a vector `x`, decoded."""
    return lambda operands: r16(compute(decode(rows.numbers(operands["x"]))))


def quotient(operands: Operands) -> DoubleArray:
    """`x / y` without rounding."""
    x, y = (decode(rows.numbers(operands[key])).astype(np.float64) for key in "xy")
    return np.asarray(x / y)


def by_inverse(operands: Operands) -> DoubleArray:
    """`x` times the table of inverses at `y`."""
    x, y = (rows.numbers(operands[key]) for key in "xy")
    return np.asarray(decode(x).astype(np.float64) * inverse(y, epsilon=0))


def softmax(
    total: Callable[[FloatArray], float], *, inverted: bool
) -> Callable[[Operands], FloatArray]:
    """The table of exp at `x` less the maximum; its sum rounded; a quotient or an inverse."""

    def compute(operands: Operands) -> FloatArray:
        x = rows.numbers(operands["x"]).astype(np.float64)
        powers = np.asarray(exp(r16(x - x.max())))
        whole = r16(total(powers))
        if inverted:
            return r16(powers.astype(np.float64) * inverse(whole, epsilon=0))
        return r16(powers.astype(np.float64) / whole)

    return compute


def int8_conv(operands: Operands, *, late: bool) -> Any:
    """8-bit codes, with the scale after the sum or in each weight, which is then fp16."""
    codes, scale = np.asarray(operands["codes"], np.int64), rows.number(operands["scale"])
    x = rows.numbers(operands["x"])
    if late:
        factors = Weight.of(codes.astype(np.float32)[None, None])
        return scaled_after(factors, x[None, None], np.asarray([[scale]], np.float32)).values.item()
    weight = (codes * scale).astype(np.float16)[None, None]
    return sums(Weight.of(weight), x[None, None]).values.item()


CANDIDATES: Mapping[str, Mapping[str, Callable[[Operands], Any]]] = {
    "reduce_sum": {name: reduction(total) for name, total in SUMS.items()},
    "reduce_mean": {name: reduction(mean) for name, mean in MEANS.items()},
    "real_div": {
        "quotient, rounded once": lambda o: r16(quotient(o)),
        "times the table of inverses": lambda o: r16(by_inverse(o)),
    },
    "softmax": {
        f"exp by table, sum {name}, {'times its inverse' if inverted else 'divided'}": softmax(
            total, inverted=inverted
        )
        for name, total in SUMS.items()
        for inverted in (False, True)
    },
    "conv_int8": {
        "scale in the weight": lambda o: int8_conv(o, late=False),
        "scale after the sum": lambda o: int8_conv(o, late=True),
    },
    "linear_order": {"in order of the inputs": rows.dot},
}
"""By operation, then by name; each gives what `r16` gives."""
