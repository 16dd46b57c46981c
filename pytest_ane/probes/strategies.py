"""Inputs of packages as hypothesis strategies, of the kinds that the manifest names.

They need hypothesis, which pytest-ane itself does not: `pip install hypothesis`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pytest_ane.manifest.inputs import Input, InputKind
from pytest_ane.probes.inputs import Call, Shape, draw

if TYPE_CHECKING:
    from hypothesis.strategies import SearchStrategy

    from pytest_ane.mlprogram.arrays import Array

_SEEDS = (1 << 32) - 1


def inputs(
    kind: InputKind,
    shape: Shape | SearchStrategy[Shape],
    *,
    start: int | SearchStrategy[int] = 0,
    **options: Any,
) -> SearchStrategy[Array]:
    """Arrays of one kind: float32, or int64 of `ids` and `positions`.

    `kind` and options are as in `[models.NAME.shard.ID.inputs.INPUT]`, with `_` for `-`:
    `inputs("ids", (8,), count=256)`. The shape, and the position `start` of the call's first row,
    may be strategies. An array is drawn whole from a seed, and shrinks to that of a small one.
    `ValueError` where an option is wrong, or does not fit the kind or the shape.
    """
    try:
        from hypothesis import strategies as st
    except ImportError:
        raise ModuleNotFoundError(
            "pytest_ane.probes.strategies needs hypothesis, which is not installed; run: "
            "pip install hypothesis",
            name="hypothesis",
        ) from None
    spec = Input(kind=kind, **options)

    def drawn(seed: int, number: int, shape: Shape, start: int) -> Array:
        first = (spec.count or 0) * (number % 2)  # Every other array may hold an id twice.
        return draw(spec, shape, Call((seed, "hypothesis"), "", number, start, first))

    return st.builds(
        drawn,
        st.integers(0, _SEEDS),
        st.integers(0, 3),
        st.just(shape) if isinstance(shape, tuple) else shape,
        st.just(start) if isinstance(start, int) else start,
    )
