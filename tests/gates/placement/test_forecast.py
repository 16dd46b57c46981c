"""The forecast: what is counted, what is found, and its way through JSON."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import numpy as np
import pytest

from pytest_ane.gates.placement import Match, forecast
from pytest_ane.mlprogram.errors import ProgramError
from pytest_ane.mlprogram.records import Blob, Block, MLModel, Named, Operation, Value
from tests.gates.placement.programs import const, foretell, full, function, half, model, op, value

BLOCK = (
    op("cast", "h", half(1, 8, 1, 4), x="x"),
    op("mul", "scaled", half(1, 8, 1, 4), x="h", y=value(0.5)),
    op("reduce_mean", "mean", half(1, 1, 1, 4), x="scaled", axes=value([1])),
    op("rsqrt", "r", half(1, 1, 1, 4), x="mean"),
    op("mul", "n", half(1, 8, 1, 4), x="h", y="r"),
    const("i", np.zeros(4, np.int8)),
    op("constexpr_lut_to_dense", "w", half(8, 8, 1, 1), indices="i", lut=value([0.5])),
    op("conv", "c", half(1, 8, 1, 4), x="n", weight="w"),
    op("softmax", "p", half(1, 8, 1, 4), x="c", axis=value(1)),
    op("add", "sum", half(1, 8, 1, 4), x="h", y="p"),
    op("cast", "y", full(1, 8, 1, 4), x="sum"),
)


def test_a_transformer_block_is_eligible_and_its_ops_are_counted() -> None:
    found = foretell(*BLOCK, inputs={"x": full(1, 8, 1, 4)})
    assert found.outcome == "eligible"
    assert found.matches == ()
    once = ("add", "conv", "reduce_mean", "rsqrt", "softmax")
    assert found.compute == {"mul": 2, **dict.fromkeys(once, 1)}
    assert found.left_out == {"boundary cast": 2, "const": 1, "constexpr_lut_to_dense": 1}
    assert found.compute_ops == 7
    assert (found.eligible("conv"), found.ineligible()) == (1, 0)


def test_a_finding_names_op_function_and_place() -> None:
    found = foretell(const("c", [1]), op("argsort", "y", half(1, 8), x="x"), name="decode")
    why = "`argsort` is not implemented on the ANE."
    assert found.matches == (Match("R009", "ineligible", "y", "argsort", why, "decode", 1),)
    assert (found.outcome, found.ineligible("argsort"), found.eligible("argsort")) == (
        "ineligible", 1, 0,
    )  # fmt: skip
    # Of the same name, and in nested blocks.
    functions = (function(op("argsort", "y", half(1), x="x"), name=n) for n in ("a", "b"))
    found = forecast(model(*functions), size_bytes=1)
    assert [match.function for match in found.matches] == ["a", "b"]
    assert found.ineligible("argsort") == 2
    body = Block((), (op("scatter", "s", half(1), data="x"), op("relu", "r", half(1), x="s")), ())
    found = foretell(Operation("cond", {}, (Named("y", half(1)),), blocks=(body,)))
    assert [(match.op, match.rule) for match in found.matches] == [("y", "R003"), ("s", "R002")]
    assert found.compute == {"cond": 1, "relu": 1, "scatter": 1}


def test_ops_count_once_whatever_rules_they_meet() -> None:
    found = foretell(op("topk", "y", half(1, 8), x="x"))
    assert (found.outcome, found.warned(), found.eligible("topk")) == ("eligible", 1, 1)
    found = foretell(op("argsort", "y", full(1, 8), x="x"))
    assert [match.rule for match in found.matches] == ["R009", "R021"]
    assert (found.ineligible(), found.ineligible("argsort"), found.warned()) == (1, 1, 0)


def test_names_from_the_file_cannot_write_to_the_terminal() -> None:
    found = foretell(op("evil\x1b[31m", "y\r\n" + "z" * 500, half(1), x="x"))
    (match,) = found.matches
    assert match.type == "evil\\x1b[31m"
    assert match.op.startswith("y\\r\\nzz")
    assert len(match.op) <= 300
    assert match.why.isprintable()


@pytest.fixture
def stored(monkeypatch: pytest.MonkeyPatch) -> list[Value]:
    """Stands in for the weights on disk: what is read, and -inf for all of it."""
    read: list[Value] = []

    def load(_: MLModel, one: Value) -> np.ndarray[Any, Any]:
        read.append(one)
        if isinstance(one.data, Blob) and one.data.offset == 0:
            raise ProgramError("weight.bin is missing.")
        return np.full(4, -np.inf, np.float16)

    monkeypatch.setattr(sys.modules["pytest_ane.gates.placement.forecast"], "load", load)
    return read


@pytest.mark.parametrize(
    ("side", "offset", "rules", "reads"),
    [(64, 64, ["R052"], 1), (64, 0, [], 1), (5000, 64, [], 0)],
    ids=["read", "missing", "too large"],
)
def test_a_stored_mask_is_read_where_it_can_be(
    stored: list[Value], side: int, offset: int, rules: list[str], reads: int
) -> None:
    mask = Value(half(1, 1, side, side), Blob("@model_path/weights/weight.bin", offset))
    found = foretell(op("add", "y", half(1, 8, 1, 4), x="x", y=mask))
    assert ([match.rule for match in found.matches], len(stored)) == (rules, reads)


@pytest.mark.parametrize(
    "module", ["gates.placement", "mlprogram.executor", "mlprogram.executor.ane.simulation"]
)
def test_what_imports_neither_torch_nor_coremltools(module: str) -> None:
    code = (
        f"import sys, pytest_ane.{module}; print(*({{'torch', 'coremltools'}} & {{*sys.modules}}))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == ""
