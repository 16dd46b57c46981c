"""What is counted: groups, several probes, weights that are decoded in parts."""

from __future__ import annotations

import numpy as np
import pytest

from pytest_ane.backends.cpu import CpuRunner
from pytest_ane.gates.hazards import Hazards, Peak, measure
from pytest_ane.mlprogram.arrays import Array
from pytest_ane.mlprogram.executor import Session
from pytest_ane.mlprogram.executor.ane import products
from pytest_ane.mlprogram.executor.weights import StreamedWeight
from pytest_ane.probes.cases import package_case
from tests.gates.hazards import programs
from tests.gates.placement.programs import const, half, op, value


def peak(measured: Hazards, hazard: str, name: str) -> Peak:
    (found,) = [p for p in measured.peaks if (p.hazard, p.op) == (hazard, name)]
    return found


def test_the_worst_probe_is_named() -> None:
    made, inputs = programs.overflow(early=True)
    cases = [
        package_case("gaussian", f"#{factor}", [{"x": inputs["x"] * np.float16(factor)}], [])
        for factor in (1, 2, 0.5)
    ]
    measured = measure(CpuRunner(Session(made, arithmetic="ane")), cases, {})
    assert measured.probes == 3
    worst = peak(measured, "sum", "down")
    assert (worst.probe, worst.value) == ("#2", 5000)
    assert measured.rules.operations == {"recorded": 9}


def test_shares_are_of_all_calls_of_a_probe() -> None:
    """Of 1 and 2^-14, times 2^-3, the second product is dropped; of 1 and 1 none."""
    inputs = {"x": np.array([[1, 2**-14]], np.float16)}
    made = programs.program(
        inputs,
        const("w", np.full((1, 2), 2**-3, np.float16)),
        op("linear", "y", half(1, 1), x="x", weight="w"),
    )
    calls = [inputs, {"x": np.ones((1, 2), np.float16)}]
    case = package_case("gaussian", "probe", calls, [])
    lost = peak(measure(CpuRunner(Session(made, arithmetic="ane")), [case], {}), "dropped", "y")
    assert lost.count == 1 / 4
    assert lost.value == pytest.approx(2**-17 / (3 * 2**-3 + 2**-17))


def test_groups_and_strides() -> None:
    inputs = {"x": programs.normal(0, 1, 8, 1, 6, deviation=2**-6)}
    weight = programs.normal(1, 6, 4, 1, 1, deviation=2**-10)
    conv = op("conv", "y", half(1, 6, 1, 3), x="x", weight="w", groups=value(2),
              strides=value([1, 2]))  # fmt: skip
    made = programs.program(inputs, const("w", weight), conv)
    lost = peak(programs.hazards(made, inputs), "dropped", "y")
    x = np.abs(inputs["x"][0, :, 0, ::2].astype(np.float64)).reshape(2, 1, 4, 3)
    w = np.abs(weight.astype(np.float64)).reshape(2, 3, 4, 1)
    exponents = sum(np.maximum(np.frexp(n)[1] - 1, -14) for n in (x, w))
    dropped = exponents <= -17
    assert 0 < dropped.sum() < dropped.size
    assert lost.count == dropped.mean()
    assert lost.value == pytest.approx((w * x)[dropped].sum() / (w * x).sum())


def test_a_weight_that_is_decoded_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    inputs = {"x": programs.normal(0, 3, 8)}
    weight = programs.normal(1, 5, 8, deviation=2**-9)
    made = programs.program(
        inputs, const("w", weight), op("linear", "y", half(3, 5), x="x", weight="w")
    )

    def rows(start: int, stop: int, out: Array) -> Array:
        out[:] = weight[start:stop]
        return out

    streamed = StreamedWeight(weight.shape, np.float32, rows)
    (operation,) = (o for o in made.main.block.operations if o.op == "const")
    session = Session(made, arithmetic="ane", overrides={operation: streamed})
    monkeypatch.setattr(products, "_AT_ONCE", 16)
    case = package_case("gaussian", "probe", [inputs], [])
    measured = measure(CpuRunner(session), [case], {})
    assert measured.peaks == programs.hazards(made, inputs).peaks
    assert peak(measured, "dropped", "y").count > 0
