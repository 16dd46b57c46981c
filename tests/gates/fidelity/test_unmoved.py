"""Outputs that no input changes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pytest_ane.backends import CpuBackend
from pytest_ane.gates.fidelity import judge, measure
from pytest_ane.gates.verdict import Finding
from pytest_ane.make.coremltools_quiet import converter_notes, import_coremltools
from pytest_ane.manifest import Probes
from pytest_ane.manifest.policy import FidelityPolicy
from pytest_ane.mlprogram.model import read_model
from pytest_ane.probes.error_budget import run_cases
from pytest_ane.probes.package import package_cases

ct = import_coremltools()
from coremltools.converters.mil import Builder as mb  # noqa: E402
from coremltools.converters.mil.mil import Function, Program, types  # noqa: E402

F16 = np.float16
TABLE = np.arange(8, dtype=F16).reshape(1, 8)


def _product(x: Any, name: str = "") -> Any:
    weight = np.random.default_rng(0).standard_normal((8, 8)).astype(F16)
    return mb.matmul(x=x, y=weight, **({"name": name} if name else {}))


def right(x: Any) -> Any:
    return _product(x, "y")


def zero(x: Any) -> Any:
    return mb.mul(x=_product(x), y=F16(0), name="y")


def positions(x: Any) -> Any:
    """A table of positions is all that is left: rows differ, and no input changes them."""
    return mb.add(x=mb.mul(x=_product(x), y=F16(0)), y=TABLE, name="y")


def frozen(x: Any) -> Any:
    """What a trace leaves of an input that it took for a constant."""
    return mb.mul(x=TABLE, y=F16(2), name="y")


def one_of_two(x: Any) -> Any:
    return _product(x, "z"), zero(x)


def saturated(x: Any) -> Any:
    """A class that wins on every noise."""
    bias = np.where(np.arange(8) == 3, F16(100), F16(0)).astype(F16)
    y = mb.add(x=_product(x), y=bias.reshape(1, 8))
    return mb.reduce_argmax(x=y, axis=1, keep_dims=False, name="label")


def counter(x: Any, state: Any) -> Any:
    count = mb.add(x=mb.read_state(input=state), y=F16(1))
    return _product(x, "y"), mb.identity(
        x=mb.coreml_update_state(state=state, value=count), name="count"
    )


def cached(x: Any, state: Any) -> Any:
    """The input leads to the output over the state alone."""
    y = mb.mul(x=mb.read_state(input=state), y=F16(2), name="y")
    mb.coreml_update_state(state=state, value=x)
    return y


def findings(
    body: Callable[..., Any], folder: Path, count: int = 2, *, compared: bool = False
) -> list[Finding]:
    """What the gate says of a package without a reference, or held to what it gives itself."""
    path = folder / "p.mlpackage"
    specs: dict[str, Any] = {"x": mb.TensorSpec((1, 8), types.fp16)}
    if body in (counter, cached):
        specs["state"] = mb.StateTensorSpec((1, 8), types.fp16)
    with converter_notes():
        with Function({n: s for n, s in specs.items()}, ct.target.iOS18) as function:
            outputs = body(*function.inputs.values())
            function.set_outputs([*outputs] if isinstance(outputs, tuple) else [outputs])
        program = Program()
        program.add_function("main", function)
        ct.convert(
            program, convert_to="mlprogram", minimum_deployment_target=ct.target.iOS18,
            skip_model_load=True,
        ).save(str(path))  # fmt: skip
    backend = CpuBackend()
    cases = package_cases(backend, path, None, Probes(kinds=("gaussian",), count=count))
    runner = backend.load(path)
    if compared:
        runs = run_cases(runner, cases)
        cases = [replace(c, expected=run.rows) for c, run in zip(cases, runs, strict=True)]
    measured = measure(runner, cases, compared=compared, provenance={}, program=read_model(path))
    return [*judge(measured, FidelityPolicy(), "m:s").findings]


@pytest.mark.parametrize(
    ("body", "severity", "says"),
    [
        (zero, "failed", "Output y is zero in 2 probes, whatever the input"),
        (positions, "failed", "Output y is the same in 2 probes, whatever the input"),
        (frozen, "failed", "Output y is the same in 2 probes, whatever the input"),
        (one_of_two, "failed", "Output y is zero in 2 probes, whatever the input"),
        (counter, "warned", "Output count is the same whatever the input: no operation leads "),
        (saturated, "warned", "Output label is the same in 2 probes, whatever the input"),
    ],
)
def test_an_output_that_no_input_changes(
    body: Callable[..., Any], severity: str, says: str, tmp_path: Path
) -> None:
    (finding,) = findings(body, tmp_path)
    assert finding.severity == severity
    assert says in finding.reason
    assert "name a reference" in finding.remedy


@pytest.mark.parametrize("body", [right, cached])
def test_an_output_that_the_input_changes(body: Callable[..., Any], tmp_path: Path) -> None:
    assert findings(body, tmp_path) == []


def test_one_probe_proves_nothing(tmp_path: Path) -> None:
    (finding,) = findings(right, tmp_path, count=1)
    assert finding.severity == "unproven"
    assert finding.reason.startswith("Whether output y depends on the input is not known")
    (finding,) = findings(zero, tmp_path, count=1)
    assert finding.reason == "Output y is zero in 1 probe, whatever the input"


@pytest.mark.parametrize("body", [positions, frozen, one_of_two])
def test_a_reference_that_is_as_dead_proves_nothing(
    body: Callable[..., Any], tmp_path: Path
) -> None:
    (finding,) = findings(body, tmp_path, compared=True)
    assert finding.severity == "unproven"
    assert finding.reason.endswith("whatever the input, of the artifact and of its reference")


@pytest.mark.parametrize("body", [right, cached, counter, saturated])
def test_a_reference_tells_what_may_be_the_same(body: Callable[..., Any], tmp_path: Path) -> None:
    assert findings(body, tmp_path, compared=True) == []
