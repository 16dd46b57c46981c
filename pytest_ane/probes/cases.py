"""Cases: a probe with what the reference makes of it, in the artifact's own inputs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from pytest_ane.core.arrays import FloatArray
from pytest_ane.families import Inputs, Layout, Routes

Rows = Mapping[str, FloatArray]


@dataclass(frozen=True, eq=False)
class Case:
    """One probe of one shard.

    Attributes:
        calls: the artifact's inputs by name, for one call or several on one state.
        rows: turns a call's outputs into `[positions, channels]` arrays by output name.
        expected: the reference's rows; empty where there is no reference.
        length: positions T.
        input_max: largest magnitude of the hidden state or the floating-point inputs.
        start: position in the prompt that the first row comes from.
        residual: by output name, the part of `expected` that is the residual path alone, `[T, C]`;
            an output that is not named has none, or none that is known.
        routed: experts active in the reference at each position, for a routed shard; else empty.
        beside: whether the residual path is unknown, so that, where an input has an output's shape,
            the component along it is taken out of the output instead.
    """

    kind: str
    name: str
    calls: tuple[Inputs, ...]
    rows: Callable[[Mapping[str, npt.NDArray[Any]]], Rows]
    expected: Rows
    length: int
    input_max: float
    start: int = 0
    residual: Rows = field(default_factory=dict)
    routed: Routes = ()
    beside: bool = False


def hidden_case(
    kind: str,
    name: str,
    hidden: FloatArray,
    expected: FloatArray,
    layout: Layout,
    start: int = 0,
    chunk: int | None = None,
    residual: FloatArray | None = None,
    routed: Routes = (),
) -> Case:
    """A case of a family's shard: hidden states `[T, C]` in, `[T, C']` out.

    `chunk` is the largest T of a call; None for one call.
    """
    size = chunk or max(len(hidden), 1)
    return Case(
        kind=kind,
        name=name,
        calls=tuple(layout.inputs(hidden[i : i + size], i) for i in range(0, len(hidden), size)),
        rows=lambda outputs: {"y": layout.output(outputs)},
        expected={"y": expected},
        length=len(hidden),
        input_max=float(np.abs(hidden).max(initial=0.0)),
        start=start,
        residual={} if residual is None else {"y": residual},
        routed=routed,
    )


def package_case(kind: str, name: str, inputs: Inputs, length: int) -> Case:
    """A case of a package without a family; each output is one row, as nothing is known of it."""
    floats = [x for x in inputs.values() if np.issubdtype(x.dtype, np.floating)]
    return Case(
        kind=kind,
        name=name,
        calls=(inputs,),
        rows=flat_rows,
        expected={},
        length=length,
        input_max=max((float(np.abs(x).max(initial=0.0)) for x in floats), default=0.0),
        beside=True,
    )


def flat_rows(outputs: Mapping[str, npt.NDArray[Any]]) -> Rows:
    """Every output as one row in float32."""
    return {k: np.asarray(v, dtype=np.float32).reshape(1, -1) for k, v in outputs.items()}
