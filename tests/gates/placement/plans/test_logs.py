"""Core ML's known error texts."""

from __future__ import annotations

import pytest

from pytest_ane.gates.placement.plans import parse_plan, summarise
from pytest_ane.gates.placement.plans.read import explain
from tests.gates.placement.plans.samples import COUNTS_TEXT, LOG

TEXTS = {
    "Failed to build the model execution plan using a model architecture file '/a/model.mil' with "
    "error code: -14.": "compile the .mlpackage again",
    "E5RT encountered an STL exception. msg = MILCompilerForANE error: failed to compile ANE model "
    "using ANEF. Error=_ANECompiler : ANECCompile() FAILED.": "falls back to CPU or GPU silently",
    "[Espresso::handle_ex_plan] exception=ANECF error: ANECCompile(/a) FAILED: err=( "
    "CompilationFailure )": "falls back to CPU or GPU silently",
    "Error plan build: -1.": "older path",
    "ANEProgramProcessRequestDirect() Failed with status=0x1d : Program": "run time",
    "Error Domain=com.apple.appleneuralengine Code=5 0x3: Program Inference overflow": "overflowed",
    "Program load failure (0x20004)": "could not load",
    "Invalid blob shape: Data-dependent shapes were disabled": "R053",
    "Tensor dimensions N1D1C1H1W240000 are not within supported range, N[1-65536]": "R030",
    "ANE does not support blob with rank: 6": "R027",
    "ANE only support per-cout/per-tensor quantization": "R064",
    "'mps.dequantize' op operand #2 must be tensor of quantized values, but got 'tensor<1xf16>'":
        "R069",
}  # fmt: skip


@pytest.mark.parametrize("text", TEXTS)
def test_a_failure_is_explained(text: str) -> None:
    (message,) = explain(f"noise\n2026 {text}\n")
    assert (message.failure, message.line) == (True, 2)
    assert TEXTS[text] in message.meaning
    assert parse_plan(text.encode()).source == "log"


def test_what_only_informs_is_no_failure() -> None:
    assert [message.failure for message in parse_plan(LOG.encode()).messages] == [True, False]


def test_a_log_places_nothing() -> None:
    found = summarise(parse_plan(LOG.encode()))
    assert found.outcome == "inconclusive"


def test_a_failure_beside_good_counts_leaves_them_unproven() -> None:
    plan = parse_plan(f"ANECCompile() FAILED\n{COUNTS_TEXT}\n".encode())
    assert plan.source == "counts"
    assert summarise(plan).outcome == "inconclusive"


def test_unknown_lines_are_passed_over_and_many_are_cut() -> None:
    assert explain("all is well\n") == ()
    assert len(explain("Error plan build: -1.\n" * 5000)) == 1000
