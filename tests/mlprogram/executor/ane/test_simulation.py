"""A session in the ANE's arithmetic: its rules, and how well they are known."""

from __future__ import annotations

from inspect import signature
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pytest_ane.mlprogram.arithmetic import RuleShares
from pytest_ane.mlprogram.errors import ExecutionError
from pytest_ane.mlprogram.executor import Session
from pytest_ane.mlprogram.executor.ane.grades import Grade
from pytest_ane.mlprogram.executor.ane.simulation import grade_of, rules
from pytest_ane.mlprogram.executor.registry import lookup
from pytest_ane.mlprogram.model import read_model
from tests.mlprogram.packages import Program

HALF = 65552


def program(kind: str, shape: tuple[int, ...], dtype: str = "FLOAT16", **inputs: Any) -> Program:
    """One operation on `x`."""
    made = Program()
    made.input("x", shape, dtype, kind=HALF if dtype == "FLOAT16" else 65568)
    for name, value in inputs.items():
        if isinstance(value, np.ndarray):
            made.blob(f"{name}_0", "FLOAT16", value.shape, value.astype(np.float16).tobytes())
        else:
            made.const(f"{name}_0", value, "FLOAT16")
    names = {name: f"{name}_0" for name in inputs}
    made.op(kind, "y", dtype, shape, x="x", **names)
    made.output("y", HALF if dtype == "FLOAT16" else 65568)
    return made


def run(made: Program, folder: Path, x: Any, **options: Any) -> tuple[Any, Session]:
    session = Session(read_model(made.save(folder)), **options)
    return session.predict({"x": np.array(x, np.float32)})["y"], session


@pytest.mark.parametrize("op", sorted(rules()))
def test_rules_take_what_the_typed_operation_takes(op: str) -> None:
    typed = signature(lookup(op, "iOS18").compute)
    assert list(signature(rules()[op].compute).parameters) == list(typed.parameters)


def test_grades() -> None:
    grades = {op: grade_of(op) for op in ("conv", "silu", "softplus", "softmax")}
    assert list(grades.values()) == list(Grade)


def test_ties_are_rounded_as_the_ane_does(tmp_path: Path) -> None:
    made = program("add", (1, 2), y=1.0)
    typed, plain = run(made, tmp_path / "a", [[2048, 2050]])
    ane, session = run(made, tmp_path / "b", [[2048, 2050]], arithmetic="ane")
    assert typed.tolist() == [[2048, 2052]]
    assert ane.tolist() == [[2050, 2052]]
    assert plain.tally is None
    assert plain.rule_shares is None
    assert session.tally is not None
    assert session.tally.operations == {Grade.RECORDED: 1}


def test_sums_are_counted_with_their_overflow(tmp_path: Path) -> None:
    weight = np.array([[1, 1], [1, -1]])
    made = program("linear", (1, 2), weight=weight)
    ane, session = run(made, tmp_path, [[20000, 20000]], arithmetic="ane")
    assert ane.tolist() == [[np.inf, 0]]
    assert session.tally is not None
    assert session.tally.products == {Grade.RECORDED: 4}
    assert dict(session.tally.infinite) == {"y": 1}
    assert not session.tally.may_overflow
    assert session.rule_shares == RuleShares({"recorded": 1}, {"recorded": 4}, infinite={"y": 1})


@pytest.mark.parametrize("size", [2, 256])
def test_weights_held_in_fp16_or_not(size: int, tmp_path: Path) -> None:
    """A product of 2^-9 and 2^-9 is dropped, in each of the forms that a weight is held in."""
    made = program("linear", (1, size), weight=np.full((size, size), 2.0**-9))
    x = np.full((1, size), 2.0**-9)
    typed, _ = run(made, tmp_path / "a", x)
    held, _ = run(made, tmp_path / "b", x, arithmetic="ane")
    streamed, _ = run(made, tmp_path / "c", x, arithmetic="ane", memory_budget=0)
    assert typed.all()
    assert not held.any()
    assert not streamed.any()


def test_what_has_no_rule_is_typed_and_named(tmp_path: Path) -> None:
    made = program("softsign", (1, 2))
    typed, _ = run(made, tmp_path / "a", [[1, -3]])
    ane, session = run(made, tmp_path / "b", [[1, -3]], arithmetic="ane")
    assert ane.tolist() == typed.tolist()
    assert session.tally is not None
    assert session.tally.kinds == {"softsign": Grade.UNKNOWN}
    assert session.rule_shares == RuleShares({"unknown": 1}, unknown=("softsign",))
    assert session.tally.shares(session.tally.operations)[Grade.UNKNOWN] == 1


def test_a_larger_kernel_is_typed(tmp_path: Path) -> None:
    made = Program()
    made.input("x", (1, 1, 1, 3), "FLOAT16", kind=HALF)
    made.blob("w", "FLOAT16", (1, 1, 1, 3), np.ones(3, np.float16).tobytes())
    made.op("conv", "y", "FLOAT16", (1, 1, 1, 1), x="x", weight="w")
    made.output("y", HALF)
    ane, session = run(made, tmp_path, [[[[1, 2, 3]]]], arithmetic="ane")
    assert ane.item() == 6
    assert session.tally is not None
    assert session.tally.products == {Grade.UNKNOWN: 3}


def test_float32_programs_do_not_run_on_the_ane(tmp_path: Path) -> None:
    ane, session = run(program("exp", (1, 1), "FLOAT32"), tmp_path, [[1]], arithmetic="ane")
    assert ane.item() == np.exp(np.float32(1))
    assert session.tally is not None
    assert session.tally.operations == {Grade.UNKNOWN: 1}


@pytest.mark.parametrize(
    ("options", "message"),
    [({"arithmetic": "m1"}, "none of typed, ane"),
     ({"arithmetic": "ane", "precision": "float32"}, "excludes precision 'float32'")],
)  # fmt: skip
def test_options_that_are_refused(options: Any, message: str, tmp_path: Path) -> None:
    model = read_model(program("relu", (1, 2)).save(tmp_path))
    with pytest.raises(ExecutionError, match=message):
        Session(model, **options)
