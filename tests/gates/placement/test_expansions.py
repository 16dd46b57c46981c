"""What converters write as many operations is told as the one thing it is."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from pytest_ane.gates.placement import Forecast, estimated_work, forecast, judge
from pytest_ane.gates.placement.segmenter import predict_model
from pytest_ane.gates.verdict import Verdict
from pytest_ane.manifest.policy import PlacementPolicy
from pytest_ane.mlprogram.model import read_functions, read_model
from pytest_ane.mlprogram.records import Block, DType, Named, Operation, TensorType
from tests.gates.placement.programs import const, foretell, full, half, ints, op, rules, value

CACHE = {"k": half(1, 32, 8), "new": half(1, 1, 8), "pos": ints(1)}
POSITION = (
    op("slice_by_index", "p", ints(), x="pos", begin=value([0]), end=value([1])),
    op("add", "next", ints(), x="p", y=value(1)),
    op("expand_dims", "first", ints(1), x="p", axes=value([0])),
    op("expand_dims", "last", ints(1), x="next", axes=value([0])),
    op("concat", "begin", ints(3), values=["zero", "first", "zero"], axis=value(0)),
    op("concat", "end", ints(3), values=["one", "last", "width"], axis=value(0)),
)
WRITE = (
    const("zero", [0]), const("one", [1]), const("width", [8]), *POSITION,
    op("slice_update", "y", half(1, 32, 8), x="k", update="new", begin="begin", end="end"),
)  # fmt: skip


def strict(found: Forecast) -> Verdict:
    return judge(found, PlacementPolicy(), "m:a")


def test_the_position_of_a_cache_is_index_arithmetic() -> None:
    found = foretell(*WRITE, inputs=CACHE)
    assert (found.compute, found.left_out["index arithmetic"]) == ({"slice_update": 1}, 6)
    assert [match.rule for match in found.matches] == ["R059"]
    verdict = strict(found)
    assert verdict.status == "passed"
    assert verdict.findings[-1].reason == (
        "6 ops are index arithmetic of 1 slice (1 slice_update), which is no work for the ANE: "
        "p, next, first and 3 more"
    )
    assert not verdict.findings[-1].remedy


def test_an_integer_that_is_data_as_well_is_none() -> None:
    read = op("mul", "scaled", ints(), x="next", y=value(2))
    found = rules(*WRITE, read, inputs=CACHE, outputs=("y", "scaled"))
    assert [(name, rule) for name, rule, _ in found if rule == "R022"] == [
        ("p", "R022"), ("next", "R022"), ("scaled", "R022")
    ]  # fmt: skip


def test_angles_are_looked_up_and_a_comparison_of_ids_is_an_index() -> None:
    flag, kind = TensorType(DType.BOOL, (1,)), ints(1)
    found = foretell(
        const("cos", np.ones((64, 8), np.float16)),
        op("greater_equal", "known", flag, x="pos", y=value(0)),
        op("add", "wrapped", kind, x="pos", y=value(64)),
        op("select", "at", kind, cond="known", a="pos", b="wrapped"),
        op("gather", "y", half(1, 8), x="cos", indices="at", axis=value(0)),
        inputs=CACHE,
    )
    assert found.left_out["index arithmetic"] == 3
    assert [(match.op, match.rule) for match in found.matches] == [("y", "R012")]


def test_how_many_there_are_is_no_index() -> None:
    """It decides shapes, which are known only at run time."""
    found = rules(
        op("range_1d", "r", ints(None), start=value(0), end="n", step=value(1)),
        op("gather", "y", half(None, 8), x="x", indices="r", axis=value(0)),
        inputs={"x": half(64, 8), "n": ints()},
    )
    assert ("r", "R053", "ineligible") in found


STATE, GATES = half(1, 32), ("r", "z")
CELL = (
    op("linear", "wr", STATE, x="h", weight="w"),
    op("sigmoid", "r", STATE, x="wr"),
    op("sigmoid", "z", STATE, x="wr"),
    op("mul", "rh", STATE, x="r", y="h"),
    op("tanh", "n", STATE, x="rh"),
    op("mul", "h2", STATE, x="z", y="n"),
    op("add", "i2", ints(), x="i", y=value(1)),
)
LOOP = {"x": STATE, "start": ints()}


def loop(*body: Operation) -> Operation:
    block = Block((Named("i", ints()), Named("h", STATE)), body, ("i2", "h2"))
    outputs = (Named("count", ints()), Named("y", STATE))
    return Operation("while_loop", {}, outputs, blocks=(block,))


def test_a_gru_written_as_a_loop_is_told_as_one() -> None:
    weight = const("w", np.ones((32, 32), np.float16))
    found = foretell(weight, loop(*CELL), inputs=LOOP)
    assert [(match.rule, match.why) for match in found.matches] == [
        ("R110", "It is a GRU that the converter wrote as a loop, step by step: 7 ops in its body.")
    ]
    (reason,) = strict(found).reasons
    assert "convert one step" in reason.remedy
    assert "allow-off" in reason.remedy
    counting = loop(op("relu", "h2", STATE, x="h"), CELL[-1])
    assert next(rule for _, rule, _ in rules(counting, inputs=LOOP)) == "R003"


def steps(count: int, *, tanh: bool = True) -> list[Operation]:
    """A GRU's cell, or a layer with shared weights, one after another."""
    made = [const("w", np.ones((32, 32), np.float16))]
    for step in range(count):
        h = f"h{step}" if step else "x"
        last = "tanh" if tanh else "gelu"
        made += [
            op("linear", f"w{step}", STATE, x=h, weight="w"),
            op("sigmoid", f"r{step}", STATE, x=f"w{step}"),
            op(last, f"n{step}", STATE, x=f"w{step}"),
            op("mul", f"h{step + 1}", STATE, x=f"r{step}", y=f"n{step}"),
        ]
    return made


def test_an_unrolled_gru_is_told_and_passes() -> None:
    verdict = strict(foretell(*steps(4), inputs={"x": STATE}))
    (note,) = verdict.findings
    assert (verdict.status, note.severity) == ("passed", "note")
    assert note.reason == (
        "A GRU is unrolled: w applied 4 times, each of which waits for the one before"
    )
    for others in (steps(1), steps(4, tanh=False)):
        assert foretell(*others, inputs={"x": STATE}).expansions == ()


def test_fp32_inside_a_loop_is_no_second_reason() -> None:
    wide = Block((), (op("tanh", "n", full(1, 32), x="x"), *CELL[:4]), ("n",))
    found = foretell(Operation("while_loop", {}, (Named("y", full(1, 32)),), blocks=(wide,)))
    assert [match.rule for match in found.matches] == ["R110"]


@pytest.mark.slow
def test_a_stack_as_anemll_lays_it_out_is_green_and_names_its_index_arithmetic(
    tmp_path: Path,
) -> None:
    from tests.anemll import save_stack

    told = {}
    for name, path in save_stack(tmp_path).items():
        for program in read_functions(path) or (read_model(path),):
            found = forecast(program, size_bytes=1000)
            found = replace(found, work=estimated_work(predict_model(program)))
            verdict = judge(found, PlacementPolicy(), name, own=True)
            assert verdict.status == "passed", verdict.reasons
            indices = [f.reason for f in verdict.findings if "index arithmetic" in f.reason]
            told[name, program.function] = ", ".join(indices)
    assert {key: "slice_update" in text for key, text in told.items() if key[0] != "lm_head"} == {
        ("embeddings", ""): False,
        ("chunk1", "infer"): True, ("chunk1", "prefill"): True,
        ("chunk2", "infer"): True, ("chunk2", "prefill"): True,
    }  # fmt: skip
    assert "gather" in told["embeddings", ""]
    assert told["lm_head", ""] == ""
