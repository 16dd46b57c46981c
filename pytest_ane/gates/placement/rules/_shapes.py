"""Rules on shapes: their limits, what is known only at run time, and states."""

from __future__ import annotations

import re
from collections.abc import Iterator
from math import prod

from pytest_ane.gates.placement._graph import Depends, Site
from pytest_ane.gates.placement.rules._base import Subject, Subjects, Why
from pytest_ane.gates.placement.segmenter._costs import limit
from pytest_ane.mlprogram.errors import ManifestError
from pytest_ane.mlprogram.records import DType, MLModel, StateType, TensorType

_GIB = 2**30
_OS = re.compile(r"(macOS|iOS|iPadOS)\s+(\d{1,3})(\.\d+)*", re.IGNORECASE)
# The compiler: "Tensor dimensions N1D1C1H1W240000 are not within supported range,
# N[1-65536] D[1-16384] C[1-65536] H[1-16384] W[1-16384]" (A15).
_SPATIAL = 16_384
_HEAD = 16_384


def _rank(site: Site) -> str | None:
    most = limit("rank")
    high = (kind for kind in (*site.outputs(), *site.inputs()) if len(kind.shape) > most)
    says = "{} has rank {}; the ANE takes rank {} at most."
    return next((says.format(kind, len(kind.shape), most) for kind in high), None)


def _axes(site: Site) -> Iterator[tuple[TensorType, int, int, bool]]:
    """Each axis of each tensor, its extent, and whether it holds channels: N C H W from rank 4."""
    for kind in (*site.outputs(), *site.inputs()):
        for axis, extent in enumerate(kind.shape):
            if extent is not None:
                yield kind, axis, extent, len(kind.shape) >= 4 and axis == 1


def _too_long(site: Site) -> str | None:
    most = limit("axis")
    for kind, axis, extent, channels in _axes(site):
        if extent > most and not (channels and site.op == "conv"):
            return f"Axis {axis} of {kind} is longer than {most:,}, the most the ANE takes."
    return None


def _may_be_too_long(site: Site) -> str | None:
    for kind, axis, extent, channels in _axes(site):
        if channels and extent > limit("axis") and site.op == "conv":
            return f"{kind} has {extent:,} channels; the compiler documents 65,536 at most."
        spatial = axis >= 2 or axis == len(kind.shape) - 1
        if spatial and not channels and _SPATIAL < extent <= limit("axis"):
            most = "16,384, the most that H, W and D take before A16 and M4"
            return f"Axis {axis} of {kind} is longer than {most}."
    return None


def _wide_head(site: Site) -> str | None:
    weight = "weight" if site.op == "linear" else "y"
    if site.argument(weight) is None or site.depends(weight):
        return None
    wide = (kind.shape[-1] or 0 for kind in site.outputs() if kind.shape)
    says = "It has {:,} outputs; `linear` heads fail where `conv` slices do not."
    return next((says.format(extent) for extent in wide if extent > _HEAD), None)


def limit_bytes(os: str) -> int:
    """The largest artifact, in bytes, that the ANE of a system takes: 2 GiB, 1 GiB on macOS 27.

    `ManifestError` of a system that is not of the form `macOS 26`.
    """
    match = _OS.fullmatch(os.strip())
    if match is None:
        raise ManifestError(
            f"policy.placement os = {os!r} is not a system; write it like 'macOS 26'."
        )
    name, major = match[1].lower(), int(match[2])
    return _GIB if name == "macos" and major >= 27 else 2 * _GIB


def too_large(size_bytes: int, os: str) -> str | None:
    """Why an artifact of this size is refused; `None` where it is not."""
    size, most = f"{size_bytes / _GIB:.2f} GiB", limit_bytes(os)
    says = f"The artifact has {size}; {os.strip()} takes {most // _GIB} GiB at most."
    return says if size_bytes > most else None


_MASKS = {"begin": "begin_mask", "end": "end_mask"}


def _data_dependent(site: Site) -> str | None:
    for parameter, argument in site.deciding():
        if site.graph.origin(argument).values < Depends.VALUES:
            continue
        mask = site.integers(_MASKS.get(parameter, ""))
        if mask and all(mask):
            continue
        return f"Its {parameter} derives from values that are known only at run time."
    return None


def _unbounded(model: MLModel) -> Iterator[Subject]:
    for feature in model.inputs:
        axes = [str(axis) for axis, (_, high) in enumerate(feature.ranges) if high is None]
        if axes:
            why = f"Axis {' and '.join(axes)} of input `{feature.name}` has no upper bound."
            yield Subject(feature.name, "input", why)


def _enumerated(model: MLModel) -> Iterator[Subject]:
    for feature in model.inputs:
        if count := len(feature.enumerated):
            why = f"Input `{feature.name}` has {count} enumerated shapes."
            yield Subject(feature.name, "input", why)


_WIDTH = 32
"""Elements of fp16 in 64 bytes, which rows of ANE tensors are aligned to."""


def _states(model: MLModel) -> Iterator[tuple[str, TensorType]]:
    for function in model.program.functions.values():
        for named in function.inputs:
            if isinstance(named.type, StateType):
                yield named.name, named.type.wrapped


def _not_half(model: MLModel) -> Iterator[Subject]:
    for name, kind in _states(model):
        if kind.dtype is not DType.FP16:
            yield Subject(name, "state", f"State `{name}` is {kind}, not fp16.")


def _odd_width(model: MLModel) -> Iterator[Subject]:
    for name, kind in _states(model):
        if kind.shape and (width := kind.shape[-1] or 0) % _WIDTH:
            why = f"State `{name}` is {kind}; {width} is no multiple of {_WIDTH}."
            yield Subject(name, "state", why)


def _padded(model: MLModel) -> Iterator[Subject]:
    for function in model.program.functions.values():
        operations = function.block.operations
        results = {named.name: named.type for op in operations for named in op.outputs}
        inputs = [(named.name, named.type, "input") for named in function.inputs]
        outputs = [(name, results.get(name), "output") for name in function.block.outputs]
        for name, kind, what in (*inputs, *outputs):
            if not isinstance(kind, TensorType) or None in kind.shape or not kind.shape:
                continue
            if kind.shape[-1] == 1 and prod(extent or 0 for extent in kind.shape) > _WIDTH:
                why = f"{what.capitalize()} `{name}` is {kind}; each element fills 64 bytes."
                yield Subject(name, what, why)


def _standalone(site: Site) -> str | None:
    updates = any(named.name in site.graph.updates for named in site.operation.outputs)
    return None if updates else "Its result goes into no state."


WHY: dict[str, Why] = {
    "R027": _rank,
    "R030 ineligible": _too_long,
    "R030 warned": _may_be_too_long,
    "R032": _wide_head,
    "R053": _data_dependent,
    "R059": _standalone,
}


SUBJECTS: dict[str, Subjects] = {
    "R056": _unbounded,
    "R055": _enumerated,
    "R062": lambda model: _enumerated(model) if any(_states(model)) else iter(()),
    "R058": _odd_width,
    "R061": _not_half,
    "R107": _padded,
}
