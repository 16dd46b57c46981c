"""Shapes that are not known when the Neural Engine's program is built."""

from __future__ import annotations

from collections.abc import Iterator

from pytest_ane.mil.records import Model
from pytest_ane.placement.graph import Depends, Site
from pytest_ane.placement.rules.base import OpRule, ProgramRule, Subject

_MASKS = {"begin": "begin_mask", "end": "end_mask"}


def _data_dependent(site: Site) -> str | None:
    for parameter, argument in site.deciding():
        if site.graph.origin(argument).values < Depends.VALUES:
            continue
        mask = site.flags(_MASKS[parameter]) if parameter in _MASKS else ()
        if mask and all(mask):
            continue
        return f"Its {parameter} derives from values that are known only at run time."
    return None


def _unbounded(model: Model) -> Iterator[Subject]:
    for feature in model.inputs:
        axes = [str(axis) for axis, (_, high) in enumerate(feature.ranges) if high is None]
        if axes:
            why = f"Axis {' and '.join(axes)} of input `{feature.name}` has no upper bound."
            yield Subject(feature.name, "input", why)


RULES = (
    OpRule(
        id="R053",
        title="Shapes that derive from run-time values are rejected.",
        matches="`slice_by_index`, `slice_by_size`, `range_1d`, `reshape`, `fill`, `tile`, `pad`, "
        "`resize`, `topk` or a random op whose extents derive from run-time values; extents that "
        "derive from `shape` of a flexible input are not counted",
        why=_data_dependent,
        consequence='plan build fails ("Data-dependent shapes were disabled") or the whole graph '
        "runs on the CPU",
        scope="M2 and M4 on macOS 26",
        source="onnxsim/onnxsim, scripts/apple/README.md (a five-op reproduction); "
        "john-rocky/CoreML-LLM@72178c6, docs/",
        fix="keep shapes fixed and mask, select by a one-hot product, or slice on the host",
    ),
)
PROGRAM_RULES = (
    ProgramRule(
        id="R056",
        title="Inputs of unbounded size keep the program off the ANE.",
        matches="an input whose flexible shape has a dimension without an upper bound",
        why=_unbounded,
        consequence="every op runs on CPU or GPU",
        scope="all; small bounded ranges do run on the ANE",
        source="coremltools guide, Flexible Input Shapes; eiln/ane",
        fix="give the RangeDim an upper_bound",
    ),
)
