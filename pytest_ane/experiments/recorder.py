"""Experiments run on a Mac, on its ANE and on its CPU."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

import pytest_ane
from pytest_ane.backends import CoreMLBackend
from pytest_ane.backends.coreml import Machine, without_ane
from pytest_ane.backends.coreml.machine import has_native, is_replaced
from pytest_ane.backends.coreml.process import Device
from pytest_ane.experiments.programs import Experiment, Sample
from pytest_ane.experiments.rows import Row, patterns, to_json
from pytest_ane.gates.placement.measure import plan_on_device
from pytest_ane.make import Cache
from pytest_ane.mlprogram.arrays import Array
from pytest_ane.mlprogram.errors import AneError, BackendError, ExecutionError
from pytest_ane.mlprogram.model import read_model

NO_EVIDENCE = "not counted as ANE evidence"
"""In a row's note; who scores rows leaves such a row out."""
_REPLAYED = f"the native module is replaced by pytest-ane, no Core ML: {NO_EVIDENCE}"
_SAME = f"every output of the program equals the CPU's, which may have run it: {NO_EVIDENCE}"
_FOLDER = re.compile(r"[^\s'\"(]*/pytest-ane-[^/\s]*/")
"""Of temporary files: a file that is shared names no folder of the user's."""


@dataclass(frozen=True)
class Recording:
    """What became of an experiment.

    Attributes:
        name: the experiment's.
        rows: its rows; none where it is left out.
        reason: why it is left out, or what speaks against its rows; else empty.
    """

    name: str
    rows: tuple[Row, ...]
    reason: str = ""


def find_machine() -> Machine:
    """This Mac.

    Raises:
        BackendError: there is no Core ML here.
    """
    if not has_native():
        raise BackendError(
            "record-arithmetic records what the Neural Engine of a Mac computes, and there is no "
            "Core ML here; run it on a Mac with an M4 or a later chip."
        )
    machine = Machine.detect()
    if kind := without_ane(machine.device_facts()):
        raise BackendError(
            f"record-arithmetic records what the Neural Engine of a Mac computes, and this is "
            f"{kind}; run it on a Mac with an M4 or a later chip."
        )
    return machine


def chip_of(machine: Machine) -> str:
    """`M4 Max macOS 26.1 (25B78)`, as rows name it."""
    return f"{machine.chip.removeprefix('Apple ')} {machine.os} ({machine.os_build})"


def older_generation(machine: Machine) -> str:
    """The chip of another generation than h16+, `M1`, `M2` or `M3`; else empty."""
    match = re.search(r"\bM[123]\b", machine.chip)
    return match[0] if match else ""


def record(
    experiment: Experiment,
    machine: Machine,
    say: Callable[[str], None] = lambda text: None,
    device: Device | None = None,
) -> Recording:
    """Run an experiment on the ANE and on the CPU, if the plan places its operation on the ANE.

    Everything is built and compiled in a temporary folder.

    Args:
        experiment: the program and its inputs.
        machine: this Mac.
        say: takes remarks of the backend.
        device: the process of Core ML, shared by many experiments; by default one of its own.
    """
    try:
        with TemporaryDirectory(prefix="pytest-ane-") as folder:
            outputs = _outputs(experiment, Path(folder), machine, say, device or Device())
    except (AneError, OSError) as error:
        return Recording(experiment.name, (), _FOLDER.sub("", str(error)))
    note = _REPLAYED if is_replaced() else _SAME if _same(*outputs) else ""
    return Recording(experiment.name, rows_of(experiment, *outputs, machine, note), note)


def rows_of(
    experiment: Experiment, ane: Array, cpu: Array, machine: Machine, note: str = ""
) -> tuple[Row, ...]:
    """The rows of an experiment's outputs, on the ANE and on the CPU."""
    return tuple(
        _row(experiment, s, ane[s.at], cpu[s.at], machine, note) for s in experiment.samples
    )


def _outputs(
    experiment: Experiment,
    folder: Path,
    machine: Machine,
    say: Callable[[str], None],
    device: Device,
) -> tuple[Array, Array]:
    """The output on the ANE, and on the CPU.

    Raises:
        AneError: the operation is not on the ANE, or Core ML fails.
    """
    package, cache = experiment.save(folder), Cache(folder / "cache", notify=say)
    ane, cpu = (CoreMLBackend(cache, u, say, machine, device) for u in ("CPU_AND_NE", "CPU_ONLY"))
    plan = plan_on_device(ane, package, read_model(package))
    devices = {op.preferred for _, op in plan.walk() if op.op == experiment.kind}
    if devices != {"ANE"}:
        on = "/".join(sorted(d or "no device" for d in devices)) or "no device"
        raise ExecutionError(f"the plan places {experiment.kind} on {on}, not on the ANE.")
    outputs = [b.load(package).predict(experiment.inputs) for b in (ane, cpu)]
    (on_ane,), (on_cpu,) = (tuple(o.values()) for o in outputs)
    return on_ane, on_cpu


def _same(ane: Array, cpu: Array) -> bool:
    """Whether all bits are the same, those of zeros and NaN too."""
    return ane.tobytes() == cpu.tobytes()


def _row(
    experiment: Experiment, sample: Sample, ane: Array, cpu: Array, machine: Machine, note: str
) -> Row:
    is_one = np.size(ane) == 1
    return Row(
        id=f"{experiment.name}/{sample.name}",
        chip=chip_of(machine),
        source=f"pytest-ane {pytest_ane.__version__} record-arithmetic",
        op=experiment.op,
        operands=to_json(sample.operands),
        ane=_decimal(ane) if is_one else "",
        ane_fp16=patterns(ane),
        cpu=_decimal(cpu) if is_one else patterns(cpu),
        note=note,
    )


def _decimal(output: Array) -> str:
    """The only number of an output."""
    return str(float(np.asarray(output).item()))
