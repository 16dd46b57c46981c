"""Declared ports against a package's own: what `convert` makes has none that differ."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from pytest_ane.gates.fidelity import Fidelity, judge
from pytest_ane.gates.fidelity._measure import differences
from pytest_ane.make.coremltools_quiet import converter_notes
from pytest_ane.make.shard import convert
from pytest_ane.manifest.policy import FidelityPolicy
from pytest_ane.mlprogram.compiled import write_compiled
from pytest_ane.mlprogram.model import read_model
from pytest_ane.mlprogram.records import DType, Feature, MLModel, Program
from pytest_ane.models.families import Conversion, Port, Ports
from tests.gates.fidelity.verdicts import GOOD

PORTS = Ports(
    inputs=(Port("x", (1, 2, "T", 1)), Port("mask", (1, 1, "T", 8))),
    outputs=(Port("y", (1, 2, "T", 1)),),
    states=(Port("total", (1, 2, 1, 1)),),
)


class Sum(nn.Module):
    """Adds all positions that it ever saw; the mask is not used."""

    total: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("total", torch.zeros(1, 2, 1, 1, dtype=torch.float16))

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        self.total[:] = self.total + x.sum(dim=2, keepdim=True)
        return x + self.total


@pytest.mark.parametrize("longest", [1, 4])
def test_what_is_converted_has_the_ports_that_are_declared(tmp_path: Path, longest: int) -> None:
    """An input that the module leaves alone among them; compiled, it says the same."""
    path = tmp_path / "m.mlpackage"
    conversion = Conversion(Sum(), PORTS.inputs, PORTS.outputs, PORTS.states)
    with converter_notes():
        convert(conversion, max_tokens=longest, target="iOS18", subject="m").save(str(path))
    model = read_model(path)
    assert differences(model, conversion.ports, longest) == ()
    compiled = write_compiled(model, tmp_path / "m.mlmodelc")
    assert differences(read_model(compiled), conversion.ports, longest) == ()


X = Feature("x", DType.FP16, (1, 2, 1, 1), ((1, 1), (2, 2), (1, 4), (1, 1)))
Y, STATE = Feature("y", DType.FP16, ()), Feature("total", DType.FP16, (1, 2, 1, 1), kind="state")
MASK = Feature("mask", DType.FP16, (1, 1, 1, 8), ((1, 1), (1, 1), (1, 4), (8, 8)))


def of(*inputs: Feature, outputs: Any = (Y,), states: Any = (STATE,)) -> tuple[str, ...]:
    model = MLModel("m", "m", 9, inputs, outputs, states, Program({}))
    return differences(model, PORTS, 4)


LENGTHS = tuple((1, 2, length, 1) for length in (1, 2, 3, 4))


@pytest.mark.parametrize(
    ("x", "difference"),
    [
        (X, ""),
        (replace(X, name="h"), "input x: missing"),
        (replace(X, kind="image", ranges=()), "input x: of kind image"),
        (replace(X, dtype=DType.INT32), "input x: int32 in place of fp16"),
        (replace(X, ranges=((1, 1), (2, 2), (1, None), (1, 1))), "x: T = 1 and more in"),
        (replace(X, ranges=((1, 1), (2, 2), (2, 4), (1, 1))), "x: T = 2 to 4 in place of"),
        (replace(X, ranges=()), "input x: T = 1 in place of 1 to 4"),
        (replace(X, ranges=((1, 1), (3, 3), (1, 4), (1, 1))), "x: 3 in place of 2 along axis 1"),
        (replace(X, ranges=((1, 4),), shape=(1,)), "input x: rank 1 in place of 4"),
        (replace(X, ranges=(), enumerated=LENGTHS), ""),
        (replace(X, ranges=(), enumerated=LENGTHS[::3]), "x: T = 1, 4 alone in place of 1 to"),
    ],
)
def test_what_differs_at_an_input(x: Feature, difference: str) -> None:
    found = of(x, MASK)
    assert difference in found[0] if difference else found == ()


MORE = Feature("more", DType.FP16, (1,))
FLOATS = [replace(f, dtype=DType.FP32) for f in (X, MASK)]


@pytest.mark.parametrize(
    ("inputs", "ends", "difference"),
    [
        # Optional inputs and further outputs are in nobody's way; outputs leave the shape open.
        ((X, MASK, replace(MORE, optional=True)), {"outputs": (Y, MORE)}, ()),
        ((X, MASK), {"outputs": (replace(Y, shape=(1, 2, 1, 1)),)}, ()),
        ((X, MASK, MORE), {}, ("input more: not declared",)),
        ((X, MASK), {"states": (STATE, MORE)}, ("state more: not declared",)),
        ((X, MASK), {"states": (replace(STATE, shape=(1, 4, 1, 1)),)},
         ("state total: 4 in place of 2 along axis 1",)),
        (FLOATS, {}, ("inputs x, mask: fp32 in place of fp16",)),
        ((X, MASK), {"outputs": ()}, ("output y: missing",)),
    ],
)  # fmt: skip
def test_what_is_there_and_not_declared(inputs: Any, ends: Any, difference: Any) -> None:
    assert of(*inputs, **ends) == difference


@pytest.mark.parametrize(
    ("interface", "status"), [(None, "passed"), ((), "passed"), (("input x: fp32",), "failed")]
)
def test_another_interface_is_red_though_every_number_is_right(interface: Any, status: str) -> None:
    verdict = judge(Fidelity((GOOD,), True, {}, interface=interface), FidelityPolicy(), "m:L01")
    assert verdict.status == status
