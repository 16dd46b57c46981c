"""Operations that the Neural Engine does not have, whatever their types and shapes."""

from __future__ import annotations

from functools import cache
from importlib.resources import files

from pytest_ane.gates.placement.graph import Depends, Site
from pytest_ane.gates.placement.rules.base import OpRule

_SWEEP = "aneforge 0.4.0 full_mil_vocabulary_sweep.json (M5 Pro)"
_GUIDE = "sbryngelson/ane-guide@9eb1afe, appendix A and chapter 17 (arXiv 2606.22283)"
_NOTES = "smpanaro/more-ane-transformers, src/experiments/NOTES.md"
_FLUID = "FluidInference/FluidAudio, Documentation/ANE_Profiler.md and ANE_Candidates.md"

RECURRENT = frozenset({"gru", "lstm", "rnn"})


@cache
def mil_ops() -> frozenset[str]:
    """The op types a Core ML program may have: those coremltools 9.0 defines or writes."""
    listed = files("pytest_ane.gates.placement").joinpath("mil_ops.txt").read_text(encoding="utf-8")
    return frozenset(listed.split())


def _custom(site: Site) -> str | None:
    if site.op in mil_ops():
        return None
    return f"`{site.op}` is no op that coremltools 9.0 defines, so it counts as a custom op."


def _runtime_indices(site: Site) -> str | None:
    indices = site.argument("indices")
    if indices is None or site.graph.origin(indices).values == Depends.NOTHING:
        return None
    return "Its indices are known only at run time, and such a gather is placed on the CPU."


RULES = (
    OpRule(
        id="R001",
        title="Recurrent ops have no kernel on the ANE at any precision.",
        ops=RECURRENT,
        consequence="the op and the glue around its state run on the CPU",
        scope="A13 to A19, M1 to M5; macOS 13 to 27",
        source=f"coremltools #1780 (an Apple engineer); {_FLUID}; {_SWEEP}",
        fix="unroll the step into matmul, sigmoid, tanh and mul, or leave this part to the CPU",
    ),
    OpRule(
        id="R002",
        title="The scatter ops are not implemented on the ANE.",
        ops=frozenset({"scatter", "scatter_along_axis", "scatter_nd"}),
        consequence="falls back to CPU or GPU; a rank-5 scatter rejects the whole model",
        scope="all",
        source=f"{_SWEEP}; {_GUIDE}; {_NOTES}; {_FLUID}",
        fix="write with a one-hot multiply-add, or with slice_update into a state",
    ),
    OpRule(
        id="R003",
        title="Control flow has no code generation for the ANE.",
        ops=frozenset({"cond", "while_loop"}),
        consequence="the branch returns to the CPU and splits the graph",
        scope="all",
        source=f"{_SWEEP}; {_NOTES}",
        fix="compute both branches and select, unroll the loop, or let the host decide",
    ),
    OpRule(
        id="R004",
        title="List ops are not implemented on the ANE.",
        ops=frozenset(
            {"make_list", "list_gather", "list_length", "list_read", "list_scatter", "list_write"}
        ),
        consequence="runs on the CPU",
        scope="all",
        source=f"{_SWEEP}; {_GUIDE}",
        fix="unroll the loop and concat, or keep the tensors apart",
    ),
    OpRule(
        id="R005",
        title="This op is not implemented on the ANE.",
        ops=frozenset(
            {
                "band_part",
                "logical_and",
                "logical_or",
                "logical_xor",
                "mod",
                "non_zero",
                "one_hot",
                "reduce_prod",
                "reverse_sequence",
                "shape",
                "sliding_windows",
            }
        ),
        consequence="runs on the CPU",
        scope="measured on M1, M2, M5",
        source=f"{_SWEEP}; {_GUIDE}; {_NOTES} (band_part)",
        fix="compute it on the host and pass it as an input (masks, one-hot rows, lengths), or "
        "write it in arithmetic (a product of 0/1 for logical_and)",
    ),
    OpRule(
        id="R006",
        title="These transcendental functions are not implemented on the ANE.",
        ops=frozenset({"acos", "asin", "atanh", "cosh", "sinh", "tan"}),
        consequence="runs on the CPU",
        scope="M1 to M5",
        source=f"{_SWEEP}; {_GUIDE}; ane-probe's single-op scan",
        fix="write it with exp, log, sin, cos or atan, or tabulate it",
    ),
    OpRule(
        id="R008",
        title="Random ops are not supported on the ANE.",
        ops=frozenset(
            {"random_bernoulli", "random_categorical", "random_normal", "random_uniform"}
        ),
        consequence="runs on the CPU",
        scope="all",
        source=f"{_SWEEP}; {_GUIDE}",
        fix="draw the numbers on the host and pass them as an input",
    ),
    OpRule(
        id="R009",
        title="Core ML places sorting ops on the CPU.",
        ops=frozenset({"argsort", "topk"}),
        consequence="the op and its cast and gather consumers run on the CPU",
        scope="M3 Pro on macOS 27, M4 Max on macOS 26; a direct compile on M5 takes small topk",
        source="videlalvaro/ane-book@4ab89e2, book/journal/079; roboflow/rf-detr PR #1495",
        fix="return the scores and sort on the host",
    ),
    OpRule(
        id="R010",
        title="Arg-reductions and the ops after them run on the CPU.",
        ops=frozenset({"reduce_argmax", "reduce_argmin"}),
        outcome="warned",
        consequence="a few ops at the end of a language-model head on the CPU",
        scope="A17, A19, M series",
        source="john-rocky/CoreML-LLM@72178c6, ane_residency_baseline_2026-04-19.json; " + _GUIDE,
        fix="return the logits and take the maximum on the host",
    ),
    OpRule(
        id="R011",
        title="`cumsum` is placed on the CPU.",
        ops=frozenset({"cumsum"}),
        outcome="warned",
        consequence="one CPU op for each use",
        scope="M4 on macOS 26; fails at run time on M1",
        source=f"john-rocky/CoreML-LLM@72178c6, docs/QWEN35_ROADMAP.md; {_SWEEP}; "
        "fredyshox/ANECompat",
        fix="multiply by a triangular matrix, or use a convolution",
    ),
    OpRule(
        id="R012",
        title="A gather by indices that are known only at run time is placed on the CPU.",
        matches="`gather`, `gather_along_axis`, `gather_nd` whose `indices` are not constant",
        ops=frozenset({"gather", "gather_along_axis", "gather_nd"}),
        why=_runtime_indices,
        outcome="warned",
        consequence="a CPU op or more where the graph begins; may split the program",
        scope="M1 to M5; macOS 13 to 27",
        source=f"openmed #3071; coremltools #1103; {_NOTES}; sidekick DECISIONS.md D24",
        fix="look the embedding up on the host and pass the vectors as an input",
    ),
    OpRule(
        id="R015",
        title="Non-maximum suppression runs where CPU or GPU are allowed.",
        ops=frozenset({"non_maximum_suppression"}),
        outcome="warned",
        grade="B",
        consequence="runs on the CPU",
        scope="all; a direct compile on M5 takes it, its values unchecked",
        source=_GUIDE,
        fix="end the program with boxes and scores, and suppress on the host",
    ),
    OpRule(
        id="R016",
        title="Sampling ops need the sampler that came with A14 and M2.",
        ops=frozenset({"affine", "crop_resize", "resample"}),
        outcome="warned",
        grade="B",
        consequence="runs on the CPU of an M1; a direct compile of crop_resize fails on M5 too",
        scope="M1 and before A14",
        source=f"{_GUIDE}; {_SWEEP}",
        fix="upsample by whole numbers, or sample on the host",
    ),
    OpRule(
        id="R017",
        title="There is no path to the ANE for this op.",
        ops=frozenset({"classify", "conv_quantized"}),
        outcome="warned",
        grade="B",
        consequence="runs on the CPU, or a compile error",
        scope="all",
        source=_SWEEP,
        fix="return the scores and look the label up on the host",
    ),
    OpRule(
        id="R018",
        title="Custom ops cannot run on the ANE.",
        matches="any op type that coremltools 9.0 does not define",
        why=_custom,
        consequence="the op runs on CPU or GPU, the rest of the program may still go to the ANE",
        scope="all",
        source="coremltools #1278 (an Apple engineer)",
        fix="express it with MIL ops",
    ),
    OpRule(
        id="R048",
        title="`reduce_log_sum_exp` overflows on the ANE at small inputs.",
        ops=frozenset({"reduce_log_sum_exp"}),
        outcome="warned",
        grade="B",
        consequence="infinite from inputs of about 7.63 on",
        scope="M series",
        source="coremltools #2690, #2728",
        fix="subtract the maximum first, and add it to the result",
    ),
)
