"""Element types that the Neural Engine does not compute in."""

from __future__ import annotations

import math

import numpy as np

from pytest_ane.gates.placement.graph import Depends, Site
from pytest_ane.gates.placement.rules.base import AUTHORING, DISPATCH, OpRule
from pytest_ane.gates.placement.rules.ops import RECURRENT
from pytest_ane.mlprogram import fp16
from pytest_ane.mlprogram.records import DType, TensorType

_INTS = frozenset({DType.INT32, DType.INT64, DType.UINT32, DType.UINT64})
# Ops whose integers have a rule of their own.
_INDEX_OPS = frozenset(
    {"argsort", "non_zero", "reduce_argmax", "reduce_argmin", "shape", "topk"}
    | {"gather", "gather_along_axis", "gather_nd"}
)
_DATA = ("x", "y", "a", "b", "values")
_WIDE = frozenset({DType.FP32, DType.FP64})
_INFINITE = 1e38
_FP16_ONLY = "the ANE computes in fp16 only."
_MOST = 1 << 16
"""Elements of a constant that is looked at: biases and statistics, not weights."""


def _wide(site: Site) -> str | None:
    # No precision helps a recurrent op; the ANE takes casts; `shape` reads no element.
    if site.op in RECURRENT or site.op in ("cast", "shape"):
        return None
    for kind in site.outputs():
        if kind.dtype in _WIDE:
            return f"It computes {kind.dtype}{_too_large(site)}, and {_FP16_ONLY}"
    for kind in site.inputs():
        if kind.dtype in _WIDE:
            return f"It reads {kind.dtype}{_too_large(site)}, and {_FP16_ONLY}"
    return None


def _too_large(site: Site) -> str:
    """Why coremltools left an op in fp32: a constant that fp16 cannot hold.

    Infinite in fp16 is what is meant from 1e38 on (`fp16_overflow` in
    converters/mil/mil/passes/defs/quantization.py of coremltools 9.0).
    """
    for parameter, argument in site.arguments():
        kind = site.graph.tensor(argument)
        if kind is None or kind.dtype not in _WIDE or math.prod(d or 0 for d in kind.shape) > _MOST:
            continue
        array = site.graph.array(argument)
        sizes = np.abs(array[np.abs(array) < _INFINITE]) if array is not None else np.zeros(0)
        if sizes.size and (largest := sizes.max()) > fp16.MAX:
            return f", as its {parameter} of up to {largest:,.0f} is beyond fp16's 65,504"
    return ""


def _integers(site: Site) -> str | None:
    """Run-time values only: integers that follow a flexible input's shape cost nothing."""
    if site.op in _INDEX_OPS:
        return None
    for parameter in _DATA:
        for argument in site.operation.inputs.get(parameter, ()):
            kind = site.graph.tensor(argument)
            runtime = site.graph.origin(argument).values == Depends.VALUES
            if kind and runtime and kind.dtype in _INTS:
                return f"It reads {kind.dtype}, which is no data type of the ANE."
    values = (site.graph.origin(argument).values for _, argument in site.arguments())
    if max(values, default=0) == Depends.VALUES and any(k.dtype in _INTS for k in site.outputs()):
        return "It computes integers of 32 bits or more, which are no data type of the ANE."
    return None


def _bfloat(site: Site) -> str | None:
    kinds = (*site.outputs(), *site.inputs())
    return "It reads or computes bf16." if any(k.dtype is DType.BF16 for k in kinds) else None


def _int8_output(site: Site) -> str | None:
    for named in site.operation.outputs:
        int8 = isinstance(named.type, TensorType) and named.type.dtype is DType.INT8
        if int8 and named.name in site.graph.outputs:
            return f"Its result `{named.name}` is an output of the program, as int8."
    return None


def _bool_tile(site: Site) -> str | None:
    return "It tiles a bool." if any(k.dtype is DType.BOOL for k in site.inputs()) else None


RULES = (
    OpRule(
        id="R021",
        title="The ANE computes in fp16; ops on fp32 are never placed on it.",
        matches="any op that reads or computes fp32 or fp64 at run time, but `cast`, which the ANE "
        "takes, and what R001 names; the scale of an image input and the label of a classifier, "
        "which the converter puts at the program's boundary, are not counted",
        why=_wide,
        consequence="runs on CPU or GPU; one fp32 literal can break a whole region",
        scope="all; the same graph: fp16 140 of 140 ops on the ANE, fp32 138 of 138 on the GPU",
        source="vx-lang/Vx #173, #435, #436, #437; coreai-model-zoo #36; the compiler's message "
        f'"Invalid output tensor format: fp32"; {AUTHORING}',
        fix="convert with compute_precision=FLOAT16 and trace modules in half precision; rescale "
        "or fold a constant that fp16 cannot hold (a batch_norm into a factor and a summand)",
    ),
    OpRule(
        id="R022",
        title="int32 is no data type of the ANE.",
        matches="any op that computes int32 or int64, or reads it as data, from run-time values; "
        "gathers and ops that make indices have rules of their own",
        why=_integers,
        consequence="the op runs on the CPU; so does a cast from int32 behind it",
        scope="all; a direct compile fails on M4 and M6",
        source='the compiler\'s message "Unsupported tensor data type: int32"; '
        f"Anemll/anemll-profile, README; FluidInference/mobius, coreml-cli; {DISPATCH}",
        fix="compute positions and masks on the host and pass them as fp16, or cast at the input",
    ),
    OpRule(
        id="R024",
        title="A tile of bools fails to compile for the ANE.",
        matches="`tile` of a bool",
        ops=frozenset({"tile"}),
        why=_bool_tile,
        outcome="warned",
        grade="B",
        consequence="ANE compile error",
        scope="M3 Max",
        source="roboflow/rf-detr PR #1495",
        fix="cast to fp16 before the tile, or broadcast in the op that follows",
    ),
    OpRule(
        id="R026",
        title="bf16 is not supported on the ANE.",
        matches="any op that reads or computes bf16 at run time",
        why=_bfloat,
        outcome="warned",
        grade="B",
        consequence="runs on CPU or GPU",
        scope="all",
        source="sbryngelson/ane-guide@9eb1afe, appendix A and chapter 17 (arXiv 2606.22283)",
        fix="convert with compute_precision=FLOAT16",
    ),
    OpRule(
        id="R104",
        title="The ANE gives no int8 output.",
        matches="`cast` or `quantize` to int8 whose result is an output of the program",
        ops=frozenset({"cast", "quantize"}),
        why=_int8_output,
        consequence="runs on the CPU",
        scope="M4; Core ML puts a cast to int32 before such an output",
        source=DISPATCH,
        fix="return fp16 and convert on the host",
    ),
)
