"""Core ML: what its plans say, how it fails, what it keeps in memory, how values cross."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable
from time import perf_counter
from typing import Any

import numpy as np
import pytest

from pytest_ane.backends.coreml.errors import explain
from pytest_ane.backends.coreml.machine import coremltools
from pytest_ane.mac.first_contact import PIXELS, SHAPE, Found, Kit
from pytest_ane.mlprogram.arrays import Array
from pytest_ane.mlprogram.atomic import replacing_folder
from pytest_ane.mlprogram.errors import ExecutionError

LOADS, READS = 240, 1000
_LEAK = 64 << 20
"""Bytes that a process may grow by over the later loads or reads."""


def _load(path: str, units: str) -> Any:
    ct = coremltools()
    return ct.models.CompiledMLModel(path, ct.ComputeUnit[units])


def _plan(path: str, units: str) -> list[tuple[str, str, str]]:
    """Function, type and device of each operation; no device where the plan has no usage."""
    ct = coremltools()
    from coremltools.models.compute_plan import MLComputePlan

    plan = MLComputePlan.load_from_path(path, ct.ComputeUnit[units])
    planned = []
    for name, function in plan.model_structure.program.functions.items():
        for op in function.block.operations:
            usage = plan.get_compute_device_usage_for_mlprogram_operation(op)
            device = type(usage.preferred_compute_device).__name__ if usage else ""
            device = device.removeprefix("ML").removesuffix("ComputeDevice")
            planned.append((name, op.operator_name.rpartition(".")[2], device))
    return planned


@pytest.mark.parametrize("name", ["conv-iOS16", "conv-iOS17", "conv-iOS18", "state"])
def test_plan(kit: Kit, name: str, found: Found) -> None:
    """The plan of a program, made in a process without a terminal, says where its ops run."""
    plan = kit.ask_recorded(f"plan-{name}", "planning", _plan, str(kit.compiled(name)), kit.units)
    free = ("const", "cast")
    on = [d for _, kind, d in plan if kind not in free and not kind.startswith("constexpr_")]
    devices = sorted({*on} - {""})
    planned = len(on) - on.count("")
    found(f"{planned} of {len(on)} compute ops on {', '.join(devices) or 'no device'}")
    assert devices, "Then placement of such programs has no evidence, and stays unproven."


def test_plan_of_two_functions(kit: Kit, found: Found) -> None:
    """A plan says it for the default function alone."""
    path = str(kit.compiled("functions"))
    plan = kit.ask_recorded("plan-functions", "planning", _plan, path, kit.units)
    planned = sorted({function for function, _, device in plan if device})
    listed = ", ".join(sorted({function for function, *_ in plan}))
    found(f"lists {listed}; usage for {', '.join(planned) or 'none'}")
    assert planned in (["one"], ["main"]), (
        "Then each function of a package can be planned as it is, without a package of its own."
    )


def _predict(path: str, units: str, value: Any) -> Array:
    (output,) = _load(path, units).predict({"x": value}).values()
    return np.asarray(output)


def _make_state(path: str, units: str) -> Any:
    return _load(path, units).make_state()


def _error_of(function: Callable[..., object], *arguments: Any) -> Exception | None:
    try:
        function(*arguments)
    except Exception as error:  # Whatever it is, it is what the test asks for.
        return error
    return None


ZEROS = np.zeros(SHAPE, np.float32)
ERRORS: dict[str, tuple[Callable[..., object], bool, tuple[Array, ...]]] = {
    "load": (_predict, True, (ZEROS,)),
    "plan": (_plan, True, ()),
    "predict": (_predict, False, (np.repeat(ZEROS, 2, axis=-1),)),
    "make-state": (_make_state, False, ()),
}
"""What is asked, of a model without its program or of a whole one, and with which input."""


@pytest.mark.parametrize("question", ERRORS)
def test_error(kit: Kit, question: str, found: Found) -> None:
    """An error becomes one sentence: of a damaged model, a wrong shape, states that are none."""
    function, damaged, inputs = ERRORS[question]
    path = kit.compiled("conv-iOS18")
    if damaged:
        path = shutil.copytree(path, kit.work / "broken.mlmodelc", dirs_exist_ok=True)
        for file in path.glob("*.mil"):
            file.write_text("program(1.0)\n{\n")
    arguments = (function, str(path), kit.units, *inputs)
    if (error := kit.ask_recorded(f"error-{question}", question, _error_of, *arguments)) is None:
        pytest.skip("it raises no error")
    sentence = explain(error)
    found(f"{type(error).__name__}: {sentence}")
    assert not any(mark in sentence for mark in ("{", "}", "\\U", "\\n")), (
        f"Then this text needs a line in the table of known errors: {error}"
    )


def test_plan_of_a_package(kit: Kit) -> None:
    """Planning a package that is not compiled ends the process."""
    path = str(kit.package("conv-iOS18"))
    with pytest.raises(ExecutionError, match="Core ML crashed"):
        kit.ask("planning a package", _plan, path, "ALL")


def test_model_of_another_build(kit: Kit, found: Found) -> None:
    """A model that another build of macOS compiled is refused with -14."""
    models = kit.folder.parent / "compiled"
    if not (mine := models / kit.machine.os_build / "conv.mlmodelc").exists():
        mine.parent.mkdir(parents=True, exist_ok=True)
        with replacing_folder(mine) as new:
            shutil.copytree(kit.compiled("conv-iOS18"), new)
    answers = {}
    for path in sorted({*models.glob("*/conv.mlmodelc")} - {mine}):
        error = kit.ask("predicting", _error_of, _predict, str(path), kit.units, ZEROS)
        answers[path.parent.name] = str(error or "loads and predicts")
    if not answers:
        pytest.skip("no model of an earlier build here; run again after an upgrade of macOS")
    found("; ".join(f"{build}: {answer}" for build, answer in answers.items()))
    assert all("-14" in answer for answer in answers.values()), (
        "Then models are compiled again after an upgrade for nothing, or fail in another way."
    )


def _grown(times: int, call: Callable[[], object]) -> int:
    """Resident bytes that a process has more after all calls than after a tenth of them."""
    early = 0
    for index in range(times):
        call()
        if index == times // 10:
            early = _resident()
    return _resident() - early


def _resident() -> int:
    """Of this process; `getrusage` would tell the peak of the process that started it."""
    command = ["ps", "-o", "rss=", "-p", str(os.getpid())]
    return int(subprocess.run(command, capture_output=True, text=True, check=True).stdout) * 1024


def _grown_by_loads(path: str, units: str) -> int:
    return _grown(LOADS, lambda: _load(path, units))


def _grown_by_reads(path: str, units: str) -> int:
    state = _make_state(path, units)
    return _grown(READS, lambda: state.read_state("total"))


@pytest.mark.parametrize(
    ("name", "measure"),
    [
        pytest.param("conv-iOS18", _grown_by_loads, id="loads"),
        pytest.param("state", _grown_by_reads, id="state-reads"),
    ],
)
def test_memory(kit: Kit, name: str, measure: Callable[[str, str], int], found: Found) -> None:
    """240 loads, or 1000 reads of a state, do not exhaust a process."""
    path, started = str(kit.compiled(name)), perf_counter()
    grown = kit.ask("loading again and again", measure, path, kit.units)
    found(f"{grown / 1e6:.1f} MB more, {perf_counter() - started:.1f} s")
    assert grown <= _LEAK, "Then a process of Core ML has to be replaced after fewer loads."


def test_image(kit: Kit, found: Found) -> None:
    """A picture arrives as the numbers that it holds."""
    from PIL import Image

    pixels = np.random.default_rng(2).integers(0, 255, (*PIXELS[2:], 3), np.uint8)
    path = str(kit.compiled("image"))
    output = kit.ask("predicting", _predict, path, kit.units, Image.fromarray(pixels))
    difference = np.abs(output - (pixels.transpose(2, 0, 1)[None].astype(np.float32) + 1)).max()
    found(f"{output.dtype}, differs by {difference:g}")
    assert difference < 0.01, "Then references of packages with pictures get other numbers."


def test_int8(kit: Kit, found: Found) -> None:
    """int8 outputs are read with wrong strides, so they are refused."""
    values = np.arange(16, dtype=np.float32)[None] - 8
    output = kit.ask("predicting", _predict, str(kit.compiled("int8")), kit.units, values)
    found(f"{output.dtype} {output[0, :8].tolist()}, expected {values[0, :8].tolist()}")
    assert not np.array_equal(output, values), "Then int8 outputs need not be refused."
