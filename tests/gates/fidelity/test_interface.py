"""Declared ports against a package's own: what `convert` makes has none that differ."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from pytest_ane.gates.fidelity import Fidelity, judge
from pytest_ane.gates.fidelity._interface import against_package, differences
from pytest_ane.make.coremltools_quiet import converter_notes, import_coremltools
from pytest_ane.make.shard import convert
from pytest_ane.manifest.policy import FidelityPolicy
from pytest_ane.mlprogram.compiled import write_compiled
from pytest_ane.mlprogram.model import read_model
from pytest_ane.mlprogram.records import Block, DType, Feature, Function, MLModel, Program
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


def against(mine: Feature, theirs: Feature, kind: str = "inputs") -> Any:
    main = Function("main", "CoreML8", (), Block((), (), ()))
    empty = MLModel("m", "m", 9, (), (), (), Program({"main": main}))
    return against_package(*(replace(empty, **{kind: (side,)}) for side in (mine, theirs)))


RGB = Feature("image", DType.UINT8, (48, 48), kind="image", color="RGB")
KEYS = Feature("k", DType.FP16, (1, 2, 32, 8), kind="state")
FIXED, WHOLE = replace(X, ranges=()), replace(X, dtype=DType.INT32)


@pytest.mark.parametrize(
    ("mine", "theirs", "kind", "heeded", "rest"),
    [
        (X, X, "inputs", "", ""),
        (replace(RGB, color="BGR"), RGB, "inputs", "image: BGR in place of RGB", ""),
        (replace(RGB, color="BGR"), RGB, "outputs", "image: BGR in place of RGB", ""),
        (replace(RGB, shape=(64, 48)), RGB, "inputs", "does not take the shape [48, 48]", ""),
        (RGB, replace(X, name="image"), "inputs", "image: of kind image in place of tensor", ""),
        # Core ML converts floats, and compression often makes them halves.
        (X, replace(X, dtype=DType.FP32), "inputs", "", "input x: fp16 in place of fp32"),
        (X, replace(X, dtype=DType.FP32), "outputs", "", "output x: fp16 in place of fp32"),
        (WHOLE, X, "inputs", "input x: int32 in place of fp16", ""),
        (replace(X, name="h"), X, "inputs", "input x: missing", ""),
        (replace(X, name="h"), X, "outputs", "", ""),
        (X, replace(X, optional=True), "inputs", "required in place of optional", ""),
        (replace(X, optional=True), X, "inputs", "", ""),
        (replace(X, optional=True, default=1.0), replace(X, optional=True, default=0.0), "inputs",
         "default 1 in place of 0", ""),
        (X, replace(X, ranges=((1, 1), (2, 2), (1, 8), (1, 1))), "inputs",
         "1 to 4 in place of 1 to 8 along axis 2", ""),
        (replace(X, ranges=((1, 1), (2, 2), (1, 8), (1, 1))), X, "inputs", "", ""),
        # Fewer lengths than a range has, or a bound where there was none: as the ANE likes it.
        (X, replace(X, ranges=((1, 1), (2, 2), (1, None), (1, 1))), "inputs", "",
         "1 to 4 in place of 1 and more along axis 2"),
        (FIXED, X, "inputs", "", "1 in place of 1 to 4 along axis 2"),
        (replace(FIXED, enumerated=LENGTHS[:2]), X, "inputs", "", "1 to 2 in place of 1 to 4"),
        (FIXED, replace(FIXED, enumerated=LENGTHS), "inputs", "",
         "does not take the shape [1, 2, 2, 1], [1, 2, 3, 1], [1, 2, 4, 1]"),
        (replace(FIXED, enumerated=LENGTHS[:3]), replace(FIXED, enumerated=LENGTHS), "inputs",
         "does not take the shape [1, 2, 4, 1]", ""),
        (replace(X, ranges=((1, 4),), shape=(1,)), X, "inputs", "rank 1 in place of 4", ""),
        (replace(KEYS, shape=(1, 2, 16, 8)), KEYS, "states", "[1, 2, 16, 8] in place of [1, 2", ""),
        (replace(KEYS, shape=(1, 2, 8, 32)), KEYS, "states", "", "state k: [1, 2, 8, 32] in pl"),
        (replace(KEYS, name="kv"), KEYS, "states", "", ""),
    ],
)  # fmt: skip
def test_what_a_reference_package_declares_otherwise(
    mine: Feature, theirs: Feature, kind: str, heeded: str, rest: str
) -> None:
    for expected, found in zip((heeded, rest), against(mine, theirs, kind), strict=True):
        assert expected in "; ".join(found)
        assert bool(expected) == bool(found)


def test_scale_and_bias_of_an_image_are_named(tmp_path: Path) -> None:
    ct = import_coremltools()

    def saved(name: str, **given: Any) -> MLModel:
        image = ct.ImageType("image", (1, 3, 4, 4), **given)
        with converter_notes():
            traced = torch.jit.trace(nn.ReLU(), torch.zeros(1, 3, 4, 4))
            model = ct.convert(traced, inputs=[image], skip_model_load=True)
        model.save(str(tmp_path / f"{name}.mlpackage"))
        return read_model(tmp_path / f"{name}.mlpackage")

    scaled = saved("scaled", scale=1 / 255, bias=[-0.4, -0.5, -0.6])
    assert against_package(scaled, scaled) == ((), ())
    _, (scale, bias) = against_package(saved("plain"), scaled)
    assert scale == "input image: scale 1 in place of 0.00392"
    assert bias == "input image: bias 0 in place of -0.4, -0.5, -0.6"


def test_a_difference_that_callers_must_heed_is_red_and_another_a_note() -> None:
    verdict = judge(
        Fidelity((GOOD,), True, {}, interface=("input i: BGR",), adapted=("output y: fp16",)),
        FidelityPolicy(),
        "m:s",
    )
    reason, note = (f.reason for f in verdict.findings)
    assert reason == "The interface is not that of the reference: input i: BGR"
    assert note == "The reference declares another interface: output y: fp16"
