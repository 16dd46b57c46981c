"""Matrix products of ranks and depths that the Neural Engine does not take."""

from __future__ import annotations

from pytest_ane.gates.placement.graph import Depends, Site
from pytest_ane.gates.placement.rules.base import DISPATCH, OpRule
from pytest_ane.gates.placement.segmenter.support import limit

_CONSTANT_DEPTH = 16_384


def _rank(site: Site) -> int:
    return max((len(kind.shape) for kind in site.inputs()), default=0)


def _matmul_of_rank_5(site: Site) -> str | None:
    return f"It multiplies tensors of rank {_rank(site)}." if _rank(site) == 5 else None


def _linear_of_rank_5(site: Site) -> str | None:
    return (
        f"Its input has rank {_rank(site)}; `linear` takes 4 at most." if _rank(site) == 5 else None
    )


def _deep(site: Site, most: int, *, constant: bool) -> str | None:
    x, y = site.argument("x"), site.argument("weight" if site.op == "linear" else "y")
    kind = None if x is None else site.graph.tensor(x)
    if kind is None or y is None:
        return None
    if constant != (site.graph.origin(y).values == Depends.NOTHING):
        return None
    across = -2 if any(site.flags("transpose_x")) and len(kind.shape) > 1 else -1
    depth = kind.shape[across] if kind.shape else None
    if depth is None or depth <= most:
        return None
    return f"It sums over {depth:,} elements; the ANE takes a depth of {most:,} at most."


def _deep_by_constant(site: Site) -> str | None:
    return _deep(site, _CONSTANT_DEPTH, constant=True)


def _deep_at_run_time(site: Site) -> str | None:
    return _deep(site, limit("matmul depth"), constant=False)


RULES = (
    OpRule(
        id="R028",
        title="A matmul of rank 5 is placed on the CPU.",
        matches="`matmul` that reads a run-time tensor of rank 5",
        ops=frozenset({"matmul"}),
        why=_matmul_of_rank_5,
        outcome="warned",
        grade="B",
        consequence="runs on the CPU",
        scope="M4, A18",
        source="john-rocky/CoreML-LLM@72178c6, docs/",
        fix="merge the batch axes, so that the product has rank 4",
    ),
    OpRule(
        id="R029",
        title="`linear` takes inputs of rank 4 at most.",
        matches="`linear` that reads a run-time tensor of rank 5",
        ops=frozenset({"linear"}),
        why=_linear_of_rank_5,
        outcome="warned",
        grade="B",
        consequence="runs on the CPU",
        scope="all",
        source="sbryngelson/ane-guide@9eb1afe, appendix A and chapter 17 (arXiv 2606.22283)",
        fix="merge the batch axes before it",
    ),
    OpRule(
        id="R031",
        title="A product of two run-time tensors is taken up to a depth of 32,768.",
        matches="`matmul` of two run-time tensors that sums over more than 32,768 elements",
        ops=frozenset({"matmul"}),
        why=_deep_at_run_time,
        consequence="runs on the CPU",
        scope="M4: 32,768 is fine, 40,000 fails",
        source=DISPATCH,
        fix="split the sum into parts and add",
    ),
    OpRule(
        id="R031",
        title="A product by a constant is taken up to a depth of 16,384.",
        matches="`linear`, or `matmul` by a constant, that sums over more than 16,384 elements",
        ops=frozenset({"linear", "matmul"}),
        why=_deep_by_constant,
        outcome="warned",
        grade="B",
        consequence="runs on the CPU",
        scope="M series, macOS 15; the channels of a convolution may be more",
        source="chrishayuk/larql PR #312; ONNX Runtime's Core ML provider (\"does not support "
        'input dim > 16384")',
        fix="split the sum into parts and add, or write it as a 1x1 convolution",
    ),
)
