"""Shapes that are not known when the Neural Engine's program is built."""

from __future__ import annotations

from collections.abc import Iterator

from pytest_ane.gates.placement.graph import Depends, Site
from pytest_ane.gates.placement.rules.base import OpRule, ProgramRule, Subject
from pytest_ane.mlprogram.records import MLModel, StateType

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


def _enumerated_with_state(model: MLModel) -> Iterator[Subject]:
    inputs = (one for function in model.program.functions.values() for one in function.inputs)
    if any(isinstance(one.type, StateType) for one in inputs):
        yield from _enumerated(model)


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
    ProgramRule(
        id="R055",
        title="Programs with enumerated shapes are often kept off the ANE.",
        matches="an input with enumerated shapes",
        why=_enumerated,
        outcome="warned",
        consequence="every op runs on the CPU, or the load fails",
        scope="macOS 13 to 27, five projects; some audio models are reported to run",
        source="coremltools #1909, #2730; smpanaro/more-ane-transformers, "
        "src/experiments/NOTES.md; videlalvaro/ane-book@4ab89e2, book/experiments/26",
        fix="build one program for each shape, or use a small bounded RangeDim",
    ),
    ProgramRule(
        id="R062",
        title="Enumerated shapes and states do not go together.",
        matches="an input with enumerated shapes in a program with states",
        why=_enumerated_with_state,
        outcome="warned",
        grade="B",
        consequence="prediction fails with std::bad_cast",
        scope="M4 Max on macOS 26",
        source="videlalvaro/ane-book@4ab89e2, book/experiments/26",
        fix="build one program for each shape, or pass the cache as an input and an output",
    ),
)
