"""What compression made of each weight of a package: before, after, its error, or why nothing."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase

from pytest_ane.make.distortion import Distortion, distortion
from pytest_ane.manifest import Compression, Settings, Uncompressed
from pytest_ane.mlprogram.census import (
    ProgramWeight,
    Weight,
    constant_name,
    find_weights,
    plain_name,
)
from pytest_ane.mlprogram.records import Blob, MLModel, TensorType, Value


@dataclass(frozen=True)
class Outcome:
    """What became of one weight.

    Attributes:
        name: its name before any compression.
        functions: those that have it; functions that share a weight have one outcome.
        before: as the source holds it.
        after: as the new package holds it.
        error: what compression cost, against the source; None where nothing was done.
        reason: why nothing was done; else empty.
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
    """What became of every weight, in program order.

    Args:
        source: the package before, with all of its functions.
        made: what was made of it.
        compression: as requested.
        notes: those of compression on weights that it declined.

    Raises:
        ProgramError: a weight is not where its package says.
        ExecutionError: a weight cannot be decoded.
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
        results[key] = Outcome(
            _name(each),
            (each.function.name,),
            each.weight,
            after.weight,
            distortion(made, after, source, each) if changed else None,
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
    """What two functions that share a weight have in common."""
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
        return _kept(name, compression, settings)
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


def _kept(name: str, compression: Compression, settings: Settings) -> str:
    glob = next((glob for glob in compression.keep if fnmatchcase(name, glob)), None)
    return f"kept by {glob!r}" if glob else f"method = {settings.method!r}"
