"""Operations that the Neural Engine does not have, whatever their types and shapes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from functools import cache
from importlib.resources import files

from pytest_ane.gates.placement._graph import Depends, Site, is_constant
from pytest_ane.gates.placement.rules._base import Why

RECURRENT = frozenset({"gru", "lstm", "rnn"})
_PRODUCTS = kinds("conv linear matmul")
LAYER = "R110"
"""The rule on a recurrent layer that was written as a loop."""


@cache
def mil_ops() -> frozenset[str]:
    """The op types a Core ML program may have: those coremltools 9.0 defines or writes."""
    listed = files("pytest_ane.gates.placement").joinpath("mil_ops.txt").read_text(encoding="utf-8")
    return frozenset(listed.split())


def layer_of(kinds_: Mapping[str, int], steps: int = 1) -> str:
    """The recurrent layer whose steps these ops compute, by type and number; empty for none."""
    gates, candidates = kinds_.get("sigmoid", 0) // steps, kinds_.get("tanh", 0) // steps
    if not candidates or not any(kinds_.get(kind) for kind in _PRODUCTS):
        return ""
    return "a simple RNN" if not gates else "an LSTM" if candidates > 1 else "a GRU"


def _looped_layer(site: Site) -> str | None:
    body = Counter(op.op for block in site.operation.blocks for op in block.operations)
    says = "It is {} that the converter wrote as a loop, step by step: {} ops in its body."
    count = sum(n for kind, n in body.items() if not is_constant(kind))
    return says.format(layer, count) if (layer := layer_of(body)) else None


_CUSTOM = "`{}` is no op that coremltools 9.0 defines, so it counts as a custom op."
_INDICES = "Its indices are known only at run time, and such a gather is placed on the CPU."
_CONTROL_FLOW = "Control flow has no code generation for the ANE."
_BEGIN = "Its begin is known only at run time."


WHY: dict[str, Why] = {
    "R003": lambda site: None if site.op == "while_loop" and _looped_layer(site) else _CONTROL_FLOW,
    "R012": lambda site: _INDICES if site.depends("indices") is Depends.VALUES else None,
    "R018": lambda site: None if site.op in mil_ops() else _CUSTOM.format(site.op),
    "R110": _looped_layer,
    "R105": lambda site: _BEGIN if site.depends("begin") is Depends.VALUES else None,
}
