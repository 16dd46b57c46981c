"""Operations that the Neural Engine does not have, whatever their types and shapes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from functools import cache
from importlib.resources import files

from pytest_ane.gates.placement._graph import Depends, Site, is_constant
from pytest_ane.gates.placement.rules._base import DISPATCH, GUIDE, OpRule, Warned, kinds

_SWEEP = "aneforge 0.4.0 full_mil_vocabulary_sweep.json (M5 Pro)"
_NOTES = "smpanaro/more-ane-transformers, src/experiments/NOTES.md"
_FLUID = "FluidInference/FluidAudio, Documentation/ANE_Profiler.md and ANE_Candidates.md"

RECURRENT = frozenset({"gru", "lstm", "rnn"})
_PRODUCTS = kinds("conv linear matmul")
LAYER = "R110"
"""The rule on a recurrent layer that was written as a loop."""


@cache
def mil_ops() -> frozenset[str]:
    """The op types a Core ML program may have: those coremltools 9.0 defines or writes."""
    listed = files("pytest_ane.gates.placement").joinpath("mil_ops.txt").read_text(encoding="utf-8")
    return frozenset(listed.split())


def layer_of(kinds_: Mapping[str, int]) -> str:
    """The recurrent layer a step of which these ops compute, by type and number; empty for none."""
    gates, candidates = kinds_.get("sigmoid", 0), kinds_.get("tanh", 0)
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
RULES = (
    OpRule(
        id="R001",
        title="Recurrent ops have no kernel on the ANE at any precision.",
        ops=RECURRENT,
        consequence="the op and the glue around its state run on the CPU; Core ML reckons half a "
        "second for one, which takes its neighbours along",
        scope="A13 to A19, M1 to M5; macOS 13 to 27",
        source=f"coremltools #1780 (an Apple engineer); {_FLUID}; {_SWEEP}; {DISPATCH}",
        fix="unroll the step into matmul, sigmoid, tanh and mul, or leave this part to the CPU",
    ),
    OpRule(
        id="R002",
        title="The scatter ops are not implemented on the ANE.",
        ops=kinds("scatter scatter_along_axis scatter_nd"),
        consequence="falls back to CPU or GPU; a rank-5 scatter rejects the whole model",
        source=f"{_SWEEP}; {GUIDE}; {_NOTES}; {_FLUID}",
        fix="write with a one-hot multiply-add, or with slice_update into a state",
    ),
    OpRule(
        id="R003",
        title="Control flow has no code generation for the ANE.",
        matches="`cond`, `while_loop`, but for what R110 names",
        ops=kinds("cond while_loop"),
        why=lambda site: None if site.op == "while_loop" and _looped_layer(site) else _CONTROL_FLOW,
        consequence="the branch returns to the CPU and splits the graph",
        source=f"{_SWEEP}; {_NOTES}",
        fix="compute both branches and select, unroll the loop, or let the host decide",
    ),
    OpRule(
        id="R004",
        title="List ops are not implemented on the ANE.",
        ops=kinds("make_list list_gather list_length list_read list_scatter list_write"),
        source=f"{_SWEEP}; {GUIDE}",
        fix="unroll the loop and concat, or keep the tensors apart",
    ),
    OpRule(
        id="R005",
        title="This op is not implemented on the ANE.",
        ops=kinds(
            "band_part mod non_zero one_hot reduce_prod reverse_sequence shape sliding_windows"
        ),
        scope="measured on M1, M2, M4, M5",
        source=f"{_SWEEP}; {GUIDE}; {_NOTES} (band_part); {DISPATCH}",
        fix="compute it on the host and pass it as an input (masks, one-hot rows, lengths)",
    ),
    Warned(
        id="R005",
        title="Whether these logical ops run on the ANE is not measured.",
        ops=kinds("logical_or logical_xor"),
        grade="B",
        consequence="a direct compile fails",
        scope="M5; it fails for logical_and as well, which Core ML on an M4 does place on the ANE",
        source=f"{_SWEEP}; {DISPATCH} (logical_and)",
        fix="write it in arithmetic: the maximum of 0/1 for or, not_equal for xor",
    ),
    OpRule(
        id="R006",
        title="These transcendental functions are not implemented on the ANE.",
        ops=kinds("acos asin atanh cosh sinh tan"),
        scope="M1 to M5",
        source=f"{_SWEEP}; {GUIDE}; ane-probe's single-op scan",
        fix="write it with exp, log, sin, cos or atan, or tabulate it",
    ),
    OpRule(
        id="R008",
        title="Random ops are not supported on the ANE.",
        ops=kinds("random_bernoulli random_categorical random_normal random_uniform"),
        source=f"{_SWEEP}; {GUIDE}",
        fix="draw the numbers on the host and pass them as an input",
    ),
    OpRule(
        id="R009",
        title="`argsort` is not implemented on the ANE.",
        ops=kinds("argsort"),
        consequence="the op and its cast and gather consumers run on the CPU",
        scope="M4, M5",
        source=f"{_SWEEP}; {DISPATCH}",
        fix="return the scores and sort on the host",
    ),
    Warned(
        id="R009",
        title="A `topk` may be placed on the CPU.",
        ops=kinds("topk"),
        consequence="the op and its cast and gather consumers run on the CPU",
        scope="M3 Pro on macOS 27, M4 Max on macOS 26; Core ML's plan on an M4 takes three shapes, "
        "of which the compiler rejects one along the last axis",
        source="videlalvaro/ane-book@4ab89e2, book/journal/079; roboflow/rf-detr PR #1495; "
        + DISPATCH,
        fix="return the scores and sort on the host",
    ),
    OpRule(
        id="R010",
        title="Arg-reductions and the ops after them run on the CPU.",
        ops=kinds("reduce_argmax reduce_argmin"),
        consequence="a few ops at the end of a language-model head on the CPU",
        scope="A17, A19, M series; a direct compile fails on M4 and M6",
        source="john-rocky/CoreML-LLM@72178c6, ane_residency_baseline_2026-04-19.json; "
        f"{GUIDE}; {DISPATCH}",
        fix="return the logits and take the maximum on the host",
    ),
    OpRule(
        id="R011",
        title="`cumsum` is placed on the CPU.",
        ops=kinds("cumsum"),
        consequence="one CPU op for each use",
        scope="M4 on macOS 26 and 27; fails at run time on M1, a direct compile on M4 and M6",
        source=f"john-rocky/CoreML-LLM@72178c6, docs/QWEN35_ROADMAP.md; {_SWEEP}; "
        f"fredyshox/ANECompat; {DISPATCH}",
        fix="multiply by a triangular matrix, or use a convolution",
    ),
    OpRule(
        id="R012",
        title="A gather by indices that are known only at run time is placed on the CPU.",
        matches="`gather` whose `indices` derive from run-time values",
        ops=kinds("gather"),
        why=lambda site: _INDICES if site.depends("indices") is Depends.VALUES else None,
        consequence='"Unsupported gather index type": a CPU op or more where the graph begins; may '
        "split the program",
        scope="M1 to M6; macOS 13 to 27",
        source=f"openmed #3071; coremltools #1103; {_NOTES}; sidekick DECISIONS.md D24; {DISPATCH}",
        fix="look the embedding up on the host and pass the vectors as an input",
    ),
    Warned(
        id="R012",
        title="What prepares the indices of this gather is placed on the CPU.",
        matches="`gather_along_axis`, `gather_nd` whose `indices` derive from run-time values",
        ops=kinds("gather_along_axis gather_nd"),
        why=lambda site: _INDICES if site.depends("indices") is Depends.VALUES else None,
        consequence="the casts of its indices run on the CPU; itself the ANE takes",
        scope="M4; a direct compile on M5 fails",
        source=f"{DISPATCH}; {_SWEEP}",
        fix="look the embedding up on the host and pass the vectors as an input",
    ),
    Warned(
        id="R015",
        title="Non-maximum suppression runs where CPU or GPU are allowed.",
        ops=kinds("non_maximum_suppression"),
        grade="B",
        scope="all; a direct compile on M5 takes it, its values unchecked",
        source=GUIDE,
        fix="end the program with boxes and scores, and suppress on the host",
    ),
    OpRule(
        id="R016",
        title="`crop_resize` is not implemented on the ANE.",
        ops=kinds("crop_resize"),
        scope="M4, M5",
        source=f"{DISPATCH}; {_SWEEP}",
        fix="cut and resize on the host, or use `resample`, which the ANE takes from A14 and M2 on",
    ),
    Warned(
        id="R017",
        title="There is no path to the ANE for this op.",
        ops=kinds("conv_quantized"),
        grade="B",
        consequence="runs on the CPU, or a compile error",
        source=_SWEEP,
        fix="quantize the weight alone, with constexpr ops",
    ),
    OpRule(
        id="R018",
        title="Custom ops cannot run on the ANE.",
        matches="any op type that coremltools 9.0 does not define",
        why=lambda site: None if site.op in mil_ops() else _CUSTOM.format(site.op),
        consequence="the op runs on CPU or GPU, the rest of the program may still go to the ANE",
        source="coremltools #1278 (an Apple engineer)",
        fix="express it with MIL ops",
    ),
    Warned(
        id="R048",
        title="`reduce_log_sum_exp` overflows on the ANE at small inputs.",
        ops=kinds("reduce_log_sum_exp"),
        grade="B",
        consequence="infinite from inputs of about 7.63 on",
        scope="M series",
        source="coremltools #2690, #2728",
        fix="subtract the maximum first, and add it to the result",
    ),
    OpRule(
        id=LAYER,
        title="A recurrent layer that was written as a loop runs on the CPU, step by step.",
        matches="`while_loop` whose body has a product and a `tanh`: coremltools writes "
        "`torch.nn.GRU` so, as Core ML's own `gru` computes another function; its body is told by "
        "no rule",
        ops=kinds("while_loop"),
        why=_looped_layer,
        consequence="the loop and all in it run on the CPU, and split the graph",
        source="`_add_gru_layer` in converters/mil/frontend/torch/ops.py of coremltools 9.0; R003",
        fix="convert one step, with the hidden state as an input and an output or as a state, and "
        "let the host loop; or, for a few steps, write the cell with linear, sigmoid and tanh in a "
        "Python loop of fixed length; or leave it to the CPU and name it in "
        "policy.placement.allow-off",
    ),
    OpRule(
        id="R105",
        title="A `slice_by_size` that begins where a run-time value says is no op of the ANE.",
        matches="`slice_by_size` whose `begin` derives from run-time values",
        ops=kinds("slice_by_size"),
        why=lambda site: _BEGIN if site.depends("begin") is Depends.VALUES else None,
        scope="M4 on macOS 27",
        source=DISPATCH,
        fix="select by a one-hot product, or slice on the host",
    ),
)
