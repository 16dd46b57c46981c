"""Rules on shapes: their limits, what is known only at run time, and states."""

from __future__ import annotations

import re
from collections.abc import Iterator
from math import prod

from pytest_ane.gates.placement._graph import Depends, Site, deciding
from pytest_ane.gates.placement.rules._base import (
    AUTHORING,
    DISPATCH,
    OpRule,
    ProgramRule,
    Rule,
    Subject,
    Warned,
    kinds,
)
from pytest_ane.gates.placement.segmenter._costs import limit
from pytest_ane.mlprogram.errors import ManifestError
from pytest_ane.mlprogram.records import DType, MLModel, StateType, TensorType

_GIB = 2**30
_OS = re.compile(r"(macOS|iOS|iPadOS)\s+(\d{1,3})(\.\d+)*", re.IGNORECASE)
# The compiler: "Tensor dimensions N1D1C1H1W240000 are not within supported range,
# N[1-65536] D[1-16384] C[1-65536] H[1-16384] W[1-16384]" (A15).
_SPATIAL = 16_384
_HEAD = 16_384
_MESSAGE = '"Tensor dimensions ... are not within supported range"'
_R030_SOURCE = (
    f"the compiler's message {_MESSAGE}; FluidInference/mobius mel_encoder_ane_behavior.md; "
    "FluidAudio #121; sbryngelson/ane-guide@9eb1afe (arXiv 2606.22283)"
)
_R030_FIX = "fold the long axis into two, or cut the tensor (a vocabulary into slices)"


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


SIZE_RULE = Rule(
    id="R076",
    title="A package above the system's size limit is kept off the ANE as a whole.",
    matches="an artifact above 2 GiB, or above 1 GiB from macOS 27 on",
    consequence="every op runs on the CPU, silently; sometimes the load fails with -14",
    scope="M2 on macOS 26 and 27.0.1, M4 Max on macOS 26, A19",
    source="eeane 2.1.0, ne_limits.py; videlalvaro/ane-book@4ab89e2, journal 055; "
    "smpanaro/more-ane-transformers, src/experiments/NOTES.md",
    fix="cut the model into more shards, or compress further",
)


def limit_bytes(os: str) -> int:
    """The most bytes of an artifact that a system's ANE takes; `ManifestError` of what is none."""
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
    for parameter, argument in deciding(site.operation):
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


LIMITS = (
    OpRule(
        id="R027",
        title="ANE tensors are of rank 5 at most.",
        matches="any op with a run-time input or an output of rank 6 or more",
        why=_rank,
        whole=True,
        consequence="the op runs on the CPU, or the whole compile fails",
        source='the compiler\'s messages "ANE does not support blob with rank: 6" and "Cannot '
        'reshape a tensor of rank > 5"; sbryngelson/ane-guide@9eb1afe, chapter 17; ANEForge #42; '
        + AUTHORING,
        fix="merge axes before the op (window partition in two steps of rank 5)",
    ),
    OpRule(
        id="R030",
        title="No axis of an ANE tensor is longer than 65,536.",
        matches="a run-time input or output with an extent above 65,536; the channels (axis 1 of "
        "rank 4 and 5) of a `conv` are not counted",
        why=_too_long,
        whole=True,
        consequence="ANE compile error; runs on CPU or GPU",
        scope="all; A15 message, limit raised to 65,536 from A16 and M4 on; 65,537 fails on "
        "C, H and W of an M4",
        source=f"{_R030_SOURCE}; {DISPATCH}",
        fix=_R030_FIX,
    ),
    Warned(
        id="R030",
        title="Before A16 and M4, H, W and D end at 16,384, and C is documented up to 65,536.",
        matches="an extent of 16,385 to 65,536 on axes from 2 on or on the last axis, or a `conv` "
        "with more than 65,536 channels",
        why=_may_be_too_long,
        consequence="ANE compile error on A15 and its generation",
        scope="A15 message; newer chips take 65,536, and a convolution to 262,144 channels is "
        "reported on the ANE",
        source=_R030_SOURCE,
        fix=_R030_FIX,
    ),
    Warned(
        id="R032",
        title="A language-model head as `linear` or `matmul` may exceed the ANE's output limit.",
        matches="`linear`, or `matmul` by a constant, with more than 16,384 outputs",
        ops=kinds("linear matmul"),
        why=_wide_head,
        consequence='"Output blob dimensions exceed ANE limit", the head runs on the CPU',
        scope="M1 Max on macOS 13 and 14, M4 Max on macOS 26; 17,408 outputs are reported fine",
        source="smpanaro/more-ane-transformers, src/experiments/NOTES.md; "
        "videlalvaro/ane-book@4ab89e2, journal 021, 080, 081; maderix/ANE #26",
        fix="cut the vocabulary into slices and write each as a 1x1 convolution",
    ),
)
DYNAMIC = (
    OpRule(
        id="R053",
        title="Shapes that derive from run-time values are rejected.",
        matches="`slice_by_index`, `slice_by_size`, `range_1d`, `reshape`, `fill`, `tile`, `pad`, "
        "`resize`, `topk` or a random op whose extents derive from run-time values; extents that "
        "derive from `shape` of a flexible input are not counted",
        why=_data_dependent,
        whole=True,
        consequence='plan build fails ("Data-dependent shapes were disabled") or the whole graph '
        "runs on the CPU",
        scope="M2 and M4 on macOS 26",
        source="onnxsim/onnxsim, scripts/apple/README.md (a five-op reproduction); "
        "john-rocky/CoreML-LLM@72178c6, docs/",
        fix="keep shapes fixed and mask, select by a one-hot product, or slice on the host",
    ),
)
STATES = (
    Warned(
        id="R059",
        title="The ANE takes a `slice_update` only where it updates a state.",
        matches="`slice_update` whose result neither a `write_state` nor another `slice_update` "
        "takes",
        ops=kinds("slice_update"),
        why=_standalone,
        grade="B",
        consequence='"Cannot support standalone slice_update": runs on CPU or GPU',
        scope="M series",
        source="Anemll/anemll-profile, README",
        fix="write the result into a state and read it again, or use a one-hot multiply-add",
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
        why=lambda model: _enumerated(model) if any(_states(model)) else iter(()),
        outcome="warned",
        grade="B",
        consequence="prediction fails with std::bad_cast",
        scope="M4 Max on macOS 26",
        source="videlalvaro/ane-book@4ab89e2, book/experiments/26",
        fix="build one program for each shape, or pass the cache as an input and an output",
    ),
    ProgramRule(
        id="R058",
        title="A state whose last axis is no multiple of 32 may fail when it is run.",
        matches="a function input of state type whose last extent is no multiple of 32",
        why=_odd_width,
        outcome="warned",
        grade="C",
        consequence="prediction fails on the ANE; CPU and GPU run it",
        scope="M4 on macOS 15.2: a width of 270 fails where 256 runs",
        source="coremltools #2631 (a reproduction, open); Anemll #27 suspects the same alignment; "
        f"{AUTHORING}: inputs and outputs are aligned to 64 bytes",
        fix="pad the axis to a multiple of 32, or move a longer axis last",
    ),
    ProgramRule(
        id="R061",
        title="States are fp16 only.",
        matches="a function input of state type whose element type is not fp16",
        why=lambda model: (
            Subject(name, "state", f"State `{name}` is {kind}, not fp16.")
            for name, kind in _states(model)
            if kind.dtype is not DType.FP16
        ),
        consequence="conversion or load fails",
        scope="iOS 18, macOS 15 and later",
        source="coremltools guide, Stateful Models; onnxsim/onnxsim, scripts/apple/README.md",
        fix="declare the StateType with dtype=np.float16",
    ),
    ProgramRule(
        id="R107",
        title="Rows of inputs and outputs are padded to 64 bytes, single elements as well.",
        matches="a function input or output of more than 32 elements whose last extent is 1",
        why=_padded,
        outcome="warned",
        consequence="32 times the memory at fp16",
        source=AUTHORING,
        fix="move a longer axis last",
    ),
)
