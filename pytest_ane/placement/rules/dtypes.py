"""Element types that the Neural Engine does not compute in."""

from __future__ import annotations

from pytest_ane.mil.records import DType
from pytest_ane.placement.graph import Site
from pytest_ane.placement.rules.base import OpRule

_WIDE = frozenset({DType.FP32, DType.FP64})
# A cast that leaves fp32 is where the ANE's part begins; `shape` reads no element.
_HARMLESS_READERS = frozenset({"cast", "shape"})


def _wide(site: Site) -> str | None:
    for kind in site.outputs():
        if kind.dtype in _WIDE:
            return f"It computes {kind.dtype}, and the ANE computes in fp16 only."
    if site.op in _HARMLESS_READERS:
        return None
    for kind in site.inputs():
        if kind.dtype in _WIDE:
            return f"It reads {kind.dtype}, and the ANE computes in fp16 only."
    return None


RULES = (
    OpRule(
        id="R021",
        title="The ANE computes in fp16; ops on fp32 are never placed on it.",
        matches="any op that reads or computes fp32 or fp64 at run time; a `cast` of a function's "
        "input or output is not counted, nor is one that leaves fp32",
        why=_wide,
        consequence="runs on CPU or GPU; one fp32 literal can break a whole region",
        scope="all; the same graph: fp16 140 of 140 ops on the ANE, fp32 138 of 138 on the GPU",
        source="vx-lang/Vx #173, #435, #436, #437; coreai-model-zoo #36; the compiler's message "
        '"Invalid output tensor format: fp32"',
        fix="convert with compute_precision=FLOAT16 and trace modules in half precision",
    ),
)
