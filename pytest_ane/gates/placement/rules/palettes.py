"""Palettes and activation quantization that some devices refuse."""

from __future__ import annotations

from collections.abc import Iterator

from pytest_ane.gates.placement.graph import Site
from pytest_ane.gates.placement.rules.base import OpRule
from pytest_ane.mil.records import Dim, Operation, TensorType

_VECTORS = frozenset({1, 2, 4, 5})


def _rank(operation: Operation) -> int:
    weight = operation.outputs[0].type if operation.outputs else None
    return len(weight.shape) if isinstance(weight, TensorType) else 0


def _palettes(site: Site) -> Iterator[tuple[Operation, tuple[Dim, ...], int]]:
    """The op, how many palettes along each axis of the weight, and the entries' vector size.

    A look-up table of iOS 18 has the weight's axes, then entries, then the vector; older ones
    have one axis and are no concern here.
    """
    for _, argument in site.arguments():
        for operation in site.compressed_by(argument):
            lut = next(iter(operation.inputs.get("lut", ())), None)
            kind = None if lut is None else site.graph.tensor(lut)
            rank = _rank(operation)
            if kind and rank and len(kind.shape) == rank + 2:
                yield operation, kind.shape[:-2], kind.shape[-1] or 1


def _along_two_axes(site: Site) -> str | None:
    for operation, groups, _ in _palettes(site):
        if sum(count != 1 for count in groups) > 1:
            along = "x".join(str(count) for count in groups if count != 1)
            return f"`{operation.name}` has {along} palettes, along more than one axis."
    return None


def _odd_vector(site: Site) -> str | None:
    for operation, _, size in _palettes(site):
        if size not in _VECTORS:
            return f"The palette `{operation.name}` has entries of {size} elements."
    return None


RULES = (
    OpRule(
        id="R068",
        title="Palettes for blocks of rows and columns are not accepted.",
        matches="any op fed by `constexpr_lut_to_dense` with several palettes along two axes",
        why=_along_two_axes,
        outcome="warned",
        grade="B",
        consequence="loads, then fails with -14",
        scope="Mac, iOS 18 and 26; one project, three variants",
        source="john-rocky/CoreML-LLM@72178c6, docs/TERNARY_BONSAI.md",
        fix="group along one axis (granularity per_grouped_channel)",
    ),
    OpRule(
        id="R070",
        title="Vector palettes have entries of 1, 2, 4 or 5 elements.",
        matches="any op fed by `constexpr_lut_to_dense` whose entries have another size",
        why=_odd_vector,
        outcome="warned",
        grade="C",
        consequence="ANE compile error",
        scope="one guide",
        source="sbryngelson/ane-guide@9eb1afe, appendix A and chapter 17 (arXiv 2606.22283)",
        fix="choose cluster_dim 1, 2 or 4",
    ),
    OpRule(
        id="R071",
        title="Quantized activations compile on Macs and fail on an iPhone.",
        ops=frozenset({"quantize"}),
        outcome="warned",
        grade="B",
        consequence="ANE compile error on A19 Pro, while M4 takes the same model",
        scope="A19 Pro on iOS 26; on M4 1,339 of 1,412 ops on the ANE",
        source="john-rocky/CoreML-LLM@72178c6, docs/SESSION_2026_04_26_W4A8_HOLD.md; "
        "onnxsim/onnxsim, scripts/apple/README.md",
        fix="compress weights only, or ship a model for each device",
    ),
)
