"""Measurements as JSON data: what is left out, how numbers are spelled, what contradicts itself."""

from __future__ import annotations

import math
from typing import Any

import pytest

from pytest_ane.gates.fidelity import Fidelity
from pytest_ane.gates.placement.plans import Plan, PlannedFunction, PlannedOperation
from pytest_ane.mlprogram.errors import EvidenceError
from pytest_ane.records.record import from_data, to_data
from tests.records.makers import MEASURED


def changed(value: Any, path: str, to: Any) -> Any:
    """JSON data with another value at `comparisons.0.cosines`."""
    key, _, rest = path.partition(".")
    if isinstance(value, list):
        return [changed(one, rest, to) if rest and i == int(key) else to if i == int(key) else one
                for i, one in enumerate(value)]  # fmt: skip
    return {**value, key: changed(value[key], rest, to) if rest else to}


def test_a_plan_has_no_fields_that_say_nothing() -> None:
    operations = (PlannedOperation("w", "const"), PlannedOperation("y", "conv", "ANE", ("ANE",)))
    assert to_data("placement", Plan("coremltools", (PlannedFunction("main", operations),))) == {
        "source": "coremltools",
        "functions": [
            {
                "name": "main",
                "operations": [
                    {"name": "w", "op": "const"},
                    {"name": "y", "op": "conv", "preferred": "ANE", "supported": ["ANE"]},
                ],
            }
        ],
    }


def test_nan_and_infinity_are_words() -> None:
    data = to_data("fidelity", MEASURED["fidelity"])
    assert data["comparisons"][1]["cosines"] == [0.9, "NaN"]
    assert data["comparisons"][1]["error_max"] == "Infinity"
    found = from_data("fidelity", data, {})
    assert isinstance(found, Fidelity)
    assert math.isnan(found.comparisons[1].cosines[1])
    assert found.comparisons[1].error_max == math.inf


@pytest.mark.parametrize(
    ("gate", "path", "to", "words"),
    [
        ("fidelity", "comparisons", {}, r"measurement\.comparisons: input should be a valid tuple"),
        ("fidelity", "comparisons.0.cosines", [0.9], "1 cosines at 2 positions"),
        ("fidelity", "comparisons.0.cosines", [0.9, 1.1], "neither in -1..1 nor NaN"),
        ("fidelity", "comparisons.0.cosines", [0.9, "Infinity"], "neither in -1..1 nor NaN"),
        ("fidelity", "comparisons.0.relative", [], "0 errors at 2 positions"),
        ("fidelity", "comparisons.0.positions", [1, 0], "do not ascend"),
        ("fidelity", "comparisons.0.positions", [-1, 0], "do not ascend"),
        ("fidelity", "comparisons.0.one_zero", [3, 3], "do not ascend"),
        ("fidelity", "comparisons.0.finite", "NaN", "nan is no share"),
        ("fidelity", "comparisons.0.finite", 1.5, "1.5 is no share"),
        ("fidelity", "comparisons.0.error_max", "huge", r"comparisons\[0\]\.error_max: input"),
        ("behaviour", "prompts.0.positions.1.kl", -5, "-5.0 is no KL divergence"),
        ("behaviour", "prompts.0.positions.1.kl", "-Infinity", "is no KL divergence"),
        ("behaviour", "prompts.0.positions.1.rank", 1, "top-1 True and rank 1 contradict"),
        ("behaviour", "prompts.0.positions.1.centred_cosine", 2, "2.0 is no cosine"),
        ("behaviour", "prompts.0.positions.0.cosine", 2, "2.0 is no cosine"),
        ("behaviour", "prompts.0.positions.0.margin", -1, "is negative"),
        ("behaviour", "prompts.0.positions.0.nll", "-Infinity", "is negative"),
        ("behaviour", "prompts.0.positions.0.reference_nll", -0.1, "is negative"),
        ("behaviour", "prompts.0.head.top1", "NaN", "that is none"),
        ("behaviour", "prompts.0.head.kl", -1, "that is none"),
        ("behaviour", "prompts.0.greedy", [5], "1 greedy tokens, 2 expected ones and 2 leads"),
        ("behaviour", "prompts.0.leads", [4.0], "2 expected ones and 1 leads"),
        ("behaviour", "prompts.0.leads", [4.0, -1], "a lead is negative"),
        ("behaviour", "prompts.0.likeliest", [{"tokens": [], "logprobs": [], "tail": 0}], "1 of 2"),
        ("behaviour", "prompts.0.likeliest.0.tokens", [5], "1 tokens have 2 probabilities"),
        ("behaviour", "prompts.0.likeliest.0.tail", 0.5, "above 0"),
        ("behaviour", "alone.0.cosine", 7, "a shard alone has a cosine"),
        ("behaviour", "alone.0.error", -1, "a shard alone has a cosine"),
        ("behaviour", "prompts.0.pieces", ["a"], "1 of 2 positions have texts"),
        ("behaviour", "drift", [{"shard": "L00", "error": -1, "cosine": 1}], "a state of the"),
        ("compression", "palettes", [{"weight": "w", "values": [1], "counts": []}], "1 values"),
        ("compression", "size", -1, "a package of -1 bytes"),
        ("compression", "census.weights.0.shape", [], "no weight has such a shape"),
        ("compression", "census.weights.0.shape", [-2, -2], "no weight has such a shape"),
        ("compression", "census.weights.0.shape", [2**30, 2**30], "no weight has such a shape"),
        ("compression", "census.weights.0.sparsity", "NaN", "its sparsity is no share"),
        ("compression", "census.weights.0.compressed_bytes", -1, "bytes or bits are negative"),
        ("compression", "census.weights.0.stages.0.groups", -1, "a count of constexpr_lut"),
        ("compression", "distortions.0.sse", -1, "a sum of squares is negative"),
        ("placement", "tallies.0.ane", 3, "3 operations on the ANE, of 2"),
        ("placement", "functions.0.operations.0.preferred", "TPU", "'ANE', 'GPU' or 'CPU'"),
    ],
)
def test_what_contradicts_itself_is_refused(gate: str, path: str, to: Any, words: str) -> None:
    data = changed(to_data(gate, MEASURED[gate]), path, to)
    with pytest.raises(EvidenceError, match=words):
        from_data(gate, data, {})
