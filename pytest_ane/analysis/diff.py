"""Two packages on the same inputs, operation by operation."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from pytest_ane.core.errors import ExecutionError
from pytest_ane.mil.records import MLModel
from pytest_ane.reference import Session

Arrays = Mapping[str, npt.NDArray[Any]]


@dataclass(frozen=True)
class Difference:
    """How far an operation's result in one package is from that of the same name in another.

    Attributes:
        op: kind of the operation, in the first package.
        name: of its result.
        relative: |a - b| / |b| in Euclidean norms; infinite where the shapes differ, NaN where a
            value is not finite on one side only.
        largest: greatest absolute difference.
        note: why nothing could be compared, if so.
    """

    op: str
    name: str
    relative: float
    largest: float
    note: str = ""

    def beyond(self, tolerance: float) -> bool:
        """Whether it exceeds a relative tolerance; undefined counts as beyond."""
        return not self.relative <= tolerance


@dataclass(frozen=True)
class Comparison:
    """All operations both packages have, in the first one's order.

    Attributes:
        only_first, only_second: results that only one of the packages computes.
    """

    differences: tuple[Difference, ...]
    only_first: tuple[str, ...]
    only_second: tuple[str, ...]

    def first_beyond(self, tolerance: float) -> Difference | None:
        """The first operation whose result differs by more than a relative tolerance."""
        return next((d for d in self.differences if d.beyond(tolerance)), None)


def compare(a: MLModel, b: MLModel, inputs: Arrays) -> Comparison:
    """Run both on the same inputs and compare results of the same name.

    Raises:
        ExecutionError: one of them cannot be run on these inputs, or they share no name.
    """
    first, second = Session(a), Session(b)
    kinds = {out.name: op.op for op in a.main.block.operations for out in op.outputs}
    theirs = {_plain(name): name for name in second.computed}
    common = {name: theirs[_plain(name)] for name in first.computed if _plain(name) in theirs}
    if not common or not set(a.main.block.outputs) & set(common):
        raise ExecutionError(
            f"{a.path} and {b.path} have no output of the same name, so there is little to "
            "compare; convert both from the same module, with the same outputs."
        )
    x, y = _run(first, inputs, list(common)), _run(second, inputs, list(common.values()))
    return Comparison(
        tuple(difference(kinds[n], n, x[n], y[other]) for n, other in common.items()),
        tuple(n for n in first.computed if n not in common),
        tuple(n for n in second.computed if n not in set(common.values())),
    )


def _plain(name: str) -> str:
    """A result's name without what conversion to fp16 adds to it."""
    return name.removesuffix("_cast_fp16")


def _run(session: Session, inputs: Arrays, names: list[str]) -> Arrays:
    state = session.make_state() if session.model.states else None
    return session.predict(inputs, state, outputs=names)


def difference(op: str, name: str, a: npt.NDArray[Any], b: npt.NDArray[Any]) -> Difference:
    """How far `a` is from `b`."""
    if a.shape != b.shape:
        note = f"shapes {list(a.shape)} and {list(b.shape)}"
        return Difference(op, name, float("inf"), float("inf"), note)
    x, y = a.astype(np.float64), b.astype(np.float64)
    same = (x == y) | (np.isnan(x) & np.isnan(y))
    with np.errstate(invalid="ignore", over="ignore"):
        gap = np.where(same, 0.0, x - y)
    size = float(np.linalg.norm(np.where(np.isfinite(y), y, 0.0)))
    off = float(np.linalg.norm(gap))
    relative = 0.0 if off == 0 else off / size if size else float("inf")
    largest = float(np.abs(gap).max(initial=0.0))
    return Difference(op, name, float("nan") if np.isnan(off) else relative, largest)
