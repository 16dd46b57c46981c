"""`pytest-ane run`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from pytest_ane.cli.arrays import read_inputs, wanted, write_outputs
from pytest_ane.reference.dtypes import Precision


def run(
    package: Path,
    inputs: Sequence[str],
    targets: Sequence[str],
    precision: Precision,
    function: str | None,
) -> Iterator[str]:
    """Run a model once; write what was asked for, and say what came out."""
    from pytest_ane.mil import read_any
    from pytest_ane.mil.records import MLModel
    from pytest_ane.reference import open_session

    session = open_session(read_any(package, function=function), precision)
    model = session.model
    outputs = (
        model.main.block.outputs
        if isinstance(model, MLModel)
        else tuple(f.name for f in model.outputs)
    )
    files = wanted(targets, outputs)
    state = session.make_state() or None
    results = session.predict(read_inputs(inputs), state, outputs=_names(outputs, files))
    write_outputs(files, results)
    for name, value in results.items():
        yield f"{name}: {_shown(value)}"
    yield f"run by pytest-ane's CPU executor ({precision}), not by Core ML"


def _names(outputs: Sequence[str], files: Mapping[str, list[Path]]) -> tuple[str, ...]:
    return tuple(dict.fromkeys((*outputs, *files)))


def _shown(value: Any) -> str:
    """`float32 [1, 8] · -1.25 to 3.5 · mean 0.1`, and how much of it is not finite."""
    if not isinstance(value, np.ndarray):
        return str(value)
    head = f"{value.dtype} {list(value.shape)}"
    if value.size == 0 or value.dtype.kind not in "fiub":
        return head
    finite = value[np.isfinite(value)]
    bad = value.size - finite.size
    lost = f" · {bad} of {value.size} NaN or infinite" if bad else ""
    if finite.size == 0:
        return head + lost
    low, high, mean = finite.min(), finite.max(), finite.mean(dtype=np.float64)
    return f"{head} · {low:.6g} to {high:.6g} · mean {mean:.6g}{lost}"
