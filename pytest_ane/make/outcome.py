"""Compression as a package shows it: what became of each weight, and what may have been asked for.

`outcomes` holds a package against the one before it, and says why a weight stays as it was; `claim`
finds a manifest's table that would ask for what a package has.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from typing import Any

import numpy as np

from pytest_ane.make.distortion import Distortion, distortion
from pytest_ane.manifest import Compression, Uncompressed, read_compression
from pytest_ane.mlprogram.blob import load
from pytest_ane.mlprogram.errors import BuildError
from pytest_ane.mlprogram.records import Blob, MLModel, TensorType, Value
from pytest_ane.mlprogram.weights import (
    ProgramWeight,
    Stage,
    Weight,
    constant_name,
    constants_of,
    find_weights,
    plain_name,
)


@dataclass(frozen=True)
class Outcome:
    """What became of one weight: how it is stored before and after, by its first name.

    Functions that share a weight have one outcome. `error` is what compression cost, against the
    source; None where nothing was done, for a `reason`.
    """

    name: str
    functions: tuple[str, ...]
    before: Weight
    after: Weight
    error: Distortion | None
    reason: str

    @property
    def compressed(self) -> bool:
        """Whether it is stored in another way than before."""
        return not self.reason


def outcomes(
    source: MLModel, made: MLModel, compression: Compression, notes: Sequence[str] = ()
) -> tuple[Outcome, ...]:
    """What became of every weight of `source` in `made`, in program order; `notes` say why not.

    `BuildError` where one that was declined has other values than before.
    """
    results: dict[object, Outcome] = {}
    new = {_place(each): each for each in find_weights(made)}
    for each in find_weights(source):
        after = new.get(_place(each), each)
        key = (_stored(each), after.weight.stages)
        if key in results:
            known = results[key]
            results[key] = replace(known, functions=(*known.functions, each.function.name))
            continue
        changed = after.weight.stages != each.weight.stages
        error = distortion(made, after, source, each)
        if not changed and error.sse > 0:
            raise BuildError(
                f"{source.path}: {_name(each)} could not be compressed and has other values than "
                "before, which is a fault of what compressed it; leave it as it is with --keep."
            )
        results[key] = Outcome(
            _name(each),
            (each.function.name,),
            each.weight,
            after.weight,
            error if changed else None,
            "" if changed else _reason(each, compression, notes),
        )
    return tuple(results.values())


def unmatched(source: MLModel, globs: Iterable[str]) -> Iterator[str]:
    """The globs that fit no weight's name."""
    names = {constant_name(each.operation) for each in find_weights(source)}
    yield from (glob for glob in globs if not any(fnmatchcase(name, glob) for name in names))


def _name(each: ProgramWeight) -> str:
    return plain_name(constant_name(each.operation))


def _place(each: ProgramWeight) -> tuple[str, str, tuple[int, ...]]:
    return each.function.name, _name(each), each.weight.shape


def _stored(each: ProgramWeight) -> tuple[object, ...]:
    value = each.operation.attributes.get("val")
    inputs = (a for group in each.operation.inputs.values() for a in group)
    data = [v.data for v in (value, *inputs) if isinstance(v, Value) and isinstance(v.data, Blob)]
    return (*data, _name(each), each.weight.shape) if data else (id(each.operation),)


def _reason(each: ProgramWeight, compression: Compression, notes: Sequence[str]) -> str:
    """Why a weight stays as it was."""
    weight, name = each.weight, constant_name(each.operation)
    if weight.stages:
        return "compressed already"
    settings = compression.for_weight(name, weight.op_types)
    if isinstance(settings, Uncompressed):
        glob = next((glob for glob in compression.keep if fnmatchcase(name, glob)), None)
        return f"kept by {glob!r}" if glob else f"method = {settings.method!r}"
    least = min(step.weight_threshold for step in settings.steps)
    if weight.elements <= least:
        return f"has at most {least:,} elements (weight_threshold)"
    if note := next((note for note in notes if name in note), ""):
        return note.removeprefix(f"{name}: ").rstrip(".")
    value = each.operation.attributes.get("val")
    if value is None or not isinstance(value.data, Blob):
        return "is held in the program, not in the weights file"
    kind = value.type
    if isinstance(kind, TensorType) and kind.dtype.value != "fp16":
        return f"is of {kind.dtype}"
    return "is a vector" if len(weight.shape) < 2 else "no reason was given"


_SMALL = 2048
"""The manifest's default `weight_threshold`."""


def claim(model: MLModel) -> Compression | None:
    """A compression that may have made a package; None where no single step makes its weights.

    The settings of most weights are the table's, others are overrides. What is large and stays
    uncompressed is kept. Nobody can see how tables were found: those of even steps are taken for
    `uniform`, others for `kmeans`.
    """
    weights = list(find_weights(model))
    found = {each.weight.name: _settings(model, each) for each in weights if each.weight.stages}
    if not found or not all(found.values()):
        return None
    least = min(w.weight.elements for w in weights if w.weight.stages)
    threshold = min(_SMALL, least - 1)
    common = dict(Counter(tuple(s.items()) for s in found.values() if s).most_common(1)[0][0])
    plain = (w.weight for w in weights if not w.weight.stages and w.weight.elements > threshold)
    others = [
        {"weights": name, **settings}
        for name, settings in found.items()
        if settings and settings != common
    ]
    table: dict[str, Any] = {**common, "keep": sorted({weight.name for weight in plain})}
    if threshold < _SMALL:
        table["weight_threshold"] = threshold
    return read_compression({**table, "overrides": others})


def _settings(model: MLModel, each: ProgramWeight) -> dict[str, Any] | None:
    """The settings of one compressed weight; None where several steps made it."""
    weight = each.weight
    if len(weight.stages) != 1 or weight.sparsity:
        return None
    [stage] = weight.stages
    if stage.is_palette:
        return _palettes(model, each, stage)
    if not stage.is_quantization or stage.nbits not in (4, 8):
        return None
    table: dict[str, Any] = {"method": "linear", "dtype": f"int{stage.nbits}"}
    if stage.count == 1:
        return table | {"granularity": "per_tensor"}
    if stage.blocks == 1 or stage.groups == 1:
        return table | {"granularity": "per_channel"}
    return table | {"granularity": "per_block", "block_size": weight.shape[1] // stage.blocks}


def _palettes(model: MLModel, each: ProgramWeight, stage: Stage) -> dict[str, Any] | None:
    lut = constants_of(each.operation, each.producers).get("lut")
    if lut is None or stage.vector > 1 or stage.nbits not in (1, 2, 3, 4, 6, 8):
        return None
    values = load(model, lut).astype(np.float64)
    even = _is_even(values.reshape(stage.count, -1))
    table = {"method": "palettize", "mode": "uniform" if even else "kmeans", "nbits": stage.nbits}
    if stage.count == 1:
        return table | {"granularity": "per_tensor"}
    axis = 0 if stage.groups > 1 else int(np.argmax(values.shape[: len(each.weight.shape)]))
    size = each.weight.shape[axis] // stage.count
    return table | {"granularity": "per_grouped_channel", "group_size": size}


def _is_even(tables: Any) -> bool:
    """Whether the values of every table lie in even steps, but for rounding to fp16."""
    steps = np.diff(tables, axis=1)
    rounding = 2.0**-10 * np.abs(tables).max(axis=1) + 2.0**-23
    return tables.shape[1] > 2 and bool((np.ptp(steps, axis=1) <= 2 * rounding).all())
