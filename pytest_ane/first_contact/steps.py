"""The steps: what each does on the Mac, and the facts it brings back as plain data for JSON.

A step may end its process, or never return; `run` writes that down as its facts.
"""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property, partial
from importlib.metadata import version
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any

import numpy as np

import pytest_ane
from pytest_ane.backends.coreml import Machine, without_ane
from pytest_ane.backends.coreml.compiled import compile_package
from pytest_ane.backends.coreml.errors import explain
from pytest_ane.backends.coreml.machine import coremltools, is_replaced
from pytest_ane.backends.coreml.process import Device
from pytest_ane.first_contact.packages import PIXELS, SHAPE, package
from pytest_ane.mlprogram.errors import AneError
from pytest_ane.mlprogram.model import read_model

if TYPE_CHECKING:
    from pytest_ane.report.rows import Row

LOADS, READS = 240, 1000
_TOOL_SECONDS = 60
HERE = Device(None)
"""A step has a process of its own already, and may end it."""

Facts = dict[str, Any]


@dataclass(frozen=True)
class Setup:
    """What the steps need.

    Attributes:
        folder: of this run; steps write below it.
        shard: the shard whose gates run; empty for a package of the kit's own.
        manifest: that has the shard; empty for `shards.toml` in the current folder.
        replay: a folder with a script that answers for Core ML; empty for Core ML itself.
    """

    folder: Path
    shard: str = ""
    manifest: str = ""
    replay: str = ""

    @cached_property
    def machine(self) -> Machine:
        """This Mac."""
        return Machine.detect()

    @property
    def units(self) -> str:
        """With the ANE where there is one."""
        return "CPU_ONLY" if self.no_ane else "CPU_AND_NE"

    @property
    def no_ane(self) -> str:
        """The kind of machine, where it proves nothing of the ANE; else empty."""
        return without_ane(self.machine.device_facts())

    def package(self, name: str) -> Path:
        """One of the kit's packages."""
        work = self.folder / "work"
        work.mkdir(exist_ok=True)
        return package(name, work)

    def compiled(self, name: str) -> Path:
        """The same, compiled; made unless it is there."""
        path = self.folder / "work" / f"{name}.mlmodelc"
        if not path.is_dir():
            # Renamed when it is complete: a killed run leaves no half model under the name.
            unfinished = path.with_name(f"{name}.unfinished.mlmodelc")
            shutil.rmtree(unfinished, ignore_errors=True)
            compile_package(self.package(name), unfinished, self.machine, HERE)
            unfinished.rename(path)
        return path

    def load(self, compiled: Path, function: str | None = None) -> Any:
        """A `coremltools.models.CompiledMLModel`."""
        ct = coremltools()
        return ct.models.CompiledMLModel(str(compiled), ct.ComputeUnit[self.units], function)


def machine(setup: Setup) -> Facts:
    """Chip, system, devices; and what the tools print, from which they are read."""
    found, selected = setup.machine, _printed_by(("xcode-select", "-p"))
    return {
        "chip": found.chip,
        "os": found.os,
        "os_build": found.os_build,
        "compiler": found.compiler,
        "model": found.model,
        "virtual": found.virtual,
        "translated": found.translated,
        "devices": list(found.devices),
        "ane_cores": found.ane_cores,
        "no_ane": setup.no_ane,
        "native": "replayed" if is_replaced() else "Core ML",
        "pytest_ane": pytest_ane.__version__,
        "coremltools": version("coremltools"),
        "python": platform.python_version(),
        "python_machine": platform.machine(),
        "tools": {
            "xcode-select -p": selected,
            "xcrun coremlcompiler version": _printed_by(("xcrun", "coremlcompiler", "version"))
            if selected.get("exit_code") == 0
            else {"failed": "not asked: without tools it opens a window"},
            **{
                " ".join(command): _printed_by(command)
                for command in (
                    ("sysctl", "-n", "kern.hv_vmm_present"),
                    ("sysctl", "-n", "sysctl.proc_translated"),
                )
            },
        },
    }


def _printed_by(command: tuple[str, ...]) -> Facts:
    started = perf_counter()
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, errors="replace", timeout=_TOOL_SECONDS,
            check=False,
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired) as error:
        return {"failed": str(error)}
    return {
        "exit_code": done.returncode,
        "stdout": done.stdout.strip()[:500],
        "stderr": done.stderr.strip()[:500],
        "seconds": round(perf_counter() - started, 3),
    }


def compilers(setup: Setup) -> Facts:
    """Packages compiled by Xcode's compiler and by the system's, op by op."""
    by = {"system": replace(setup.machine, compiler="coremltools")}
    if setup.machine.has_xcode:
        by["xcode"] = setup.machine
    names = ("conv-iOS18", "foldable", "state")
    return {name: _compared(setup, name, by) for name in names}


def _compared(setup: Setup, name: str, by: Mapping[str, Machine]) -> Facts:
    before = _ops(setup.package(name))
    facts: Facts = {"package": _listed(before)}
    for compiler, compiling in by.items():
        target = setup.folder / "work" / f"{name}-{compiler}.mlmodelc"
        shutil.rmtree(target, ignore_errors=True)
        try:
            compile_package(setup.package(name), target, compiling, HERE)
            after = _ops(target)
        except AneError as error:
            facts[compiler] = {"error": str(error)}
            continue
        added, removed = after - before, before - after
        facts[compiler] = {
            "ops": _listed(after),
            "added": _types(added),
            "removed": _types(removed),
        }
    if setup.machine.has_xcode and {"ops"} <= facts["xcode"].keys() & facts["system"].keys():
        facts["same"] = facts["xcode"]["ops"] == facts["system"]["ops"]
    return facts


def _ops(path: Path) -> Counter[tuple[str, str]]:
    """Type and name of every op of the main function."""
    operations = read_model(path, weights=False).main.block.operations
    return Counter((op.op, op.name) for op in operations)


def _listed(ops: Counter[tuple[str, str]]) -> list[list[str]]:
    return [list(op) for op in ops.elements()]


def _types(ops: Counter[tuple[str, str]]) -> dict[str, int]:
    return dict(Counter(op for op, _ in ops.elements()))


def plans(setup: Setup) -> Facts:
    """Devices of every op of programs for iOS 16, 17 and 18, with states, with two functions."""
    names = ("conv-iOS16", "conv-iOS17", "conv-iOS18", "state", "functions")
    with _recorded(setup, "plans"):
        return {name: _attempted(partial(_plan, setup, name)) for name in names}


def _plan(setup: Setup, name: str) -> Facts:
    ct, compiled = coremltools(), setup.compiled(name)
    from coremltools.models.compute_plan import MLComputePlan

    started = perf_counter()
    plan = MLComputePlan.load_from_path(str(compiled), ct.ComputeUnit[setup.units])
    seconds = perf_counter() - started
    functions = plan.model_structure.program.functions
    ops = [
        [function, *_planned(plan, op)]
        for function, body in functions.items()
        for op in body.block.operations
    ]
    return {"units": setup.units, "seconds": round(seconds, 3), "ops": ops}


def _planned(plan: Any, op: Any) -> list[Any]:
    """Type, name, device, supported devices, cost; None where the plan has no usage."""
    kind, name = op.operator_name.rpartition(".")[2], op.outputs[0].name if op.outputs else ""
    usage = plan.get_compute_device_usage_for_mlprogram_operation(op)
    cost = plan.get_estimated_cost_for_mlprogram_operation(op)
    if usage is None:
        return [kind, name, None, [], None]
    supported = [_kind(device) for device in usage.supported_compute_devices]
    return [
        kind, name, _kind(usage.preferred_compute_device), supported, cost and cost.weight,
    ]  # fmt: skip


def _kind(device: Any) -> str:
    """`CPU`, `GPU` or `ANE` of one of coremltools' classes."""
    name = type(device).__name__
    short = name.removeprefix("ML").removesuffix("ComputeDevice")
    return {"NeuralEngine": "ANE"}.get(short, short)


def load_error(setup: Setup) -> Facts:
    """The error of loading a compiled model whose program is gone."""
    return _provoked(setup, "load", lambda: setup.load(_broken(setup)))


def plan_error(setup: Setup) -> Facts:
    """The error of planning the same."""

    def plan() -> None:
        from coremltools.models.compute_plan import MLComputePlan

        ct = coremltools()
        MLComputePlan.load_from_path(str(_broken(setup)), ct.ComputeUnit[setup.units])

    return _provoked(setup, "plan", plan)


def predict_error(setup: Setup) -> Facts:
    """The error of an input of the wrong shape."""
    model = setup.load(setup.compiled("conv-iOS18"))
    wrong = np.zeros((*SHAPE[:-1], SHAPE[-1] + 1), np.float32)
    return _provoked(setup, "predict", lambda: model.predict({"x": wrong}))


def state_error(setup: Setup) -> Facts:
    """What `make_state` does for a model without states."""
    model = setup.load(setup.compiled("conv-iOS18"))
    return _provoked(setup, "make_state", model.make_state)


def package_plan(setup: Setup) -> Facts:
    """What planning a package does, which the backend never asks for."""

    def plan() -> None:
        from coremltools.models.compute_plan import MLComputePlan

        MLComputePlan.load_from_path(str(setup.package("conv-iOS18")))

    return _provoked(setup, "plan a package", plan)


def _broken(setup: Setup) -> Path:
    broken = setup.folder / "work" / "broken.mlmodelc"
    shutil.rmtree(broken, ignore_errors=True)
    shutil.copytree(setup.compiled("conv-iOS18"), broken)
    for file in broken.glob("*.mil"):
        file.write_text("program(1.0)\n{\n")
    return broken


def _provoked(setup: Setup, what: str, call: Callable[[], Any]) -> Facts:
    with _recorded(setup, f"error-{what.replace(' ', '-')}"):
        return _attempted(lambda: {"error": "", "answer": type(call()).__name__})


def _attempted(call: Callable[[], Facts]) -> Facts:
    try:
        return call()
    except Exception as error:  # Whatever it is, it is the fact.
        return {
            "error": str(error)[:4000],
            "type": type(error).__name__,
            "explained": explain(error),
        }


@contextmanager
def _recorded(setup: Setup, name: str) -> Iterator[None]:
    """Keep Core ML's answers as a fixture of `pytest_ane.testing`."""
    from pytest_ane.testing import Recorder

    folder = setup.folder / "recordings" / name
    shutil.rmtree(folder, ignore_errors=True)
    with Recorder(folder):
        yield


def stale_model(setup: Setup) -> Facts:
    """Loading models that an earlier build of macOS compiled into the same folder."""
    build = setup.machine.os_build
    mine = setup.folder.parent / "compiled" / build / "conv.mlmodelc"
    if not mine.exists():
        unfinished = mine.with_name("conv.unfinished.mlmodelc")
        shutil.rmtree(unfinished, ignore_errors=True)
        shutil.copytree(setup.compiled("conv-iOS18"), unfinished)
        unfinished.rename(mine)
    older = sorted(p for p in mine.parents[1].glob("*/conv.mlmodelc") if p != mine)
    return {path.parent.name: _attempted(partial(_loaded, setup, path)) for path in older}


def _loaded(setup: Setup, compiled: Path) -> Facts:
    model = setup.load(compiled)
    model.predict({"x": np.zeros(SHAPE, np.float32)})
    return {"error": ""}


def loads(setup: Setup) -> Facts:
    """Memory over many loads in one process."""
    compiled = setup.compiled("conv-iOS18")
    return _growth(LOADS, lambda: setup.load(compiled))


def state_reads(setup: Setup) -> Facts:
    """Memory over many reads of a state in one process."""
    model = setup.load(setup.compiled("state"))
    state = model.make_state()
    return _growth(READS, lambda: state.read_state("total"))


def _growth(times: int, call: Callable[[], Any]) -> Facts:
    """Resident bytes after a tenth of the calls and after all, and seconds."""
    started, early = perf_counter(), 0
    for index in range(times):
        call()
        if index == times // 10:
            early = _resident()
    seconds = perf_counter() - started
    return {"times": times, "early": early, "late": _resident(), "seconds": round(seconds, 3)}


def _resident() -> int:
    """Of this process; `getrusage` would tell the peak of the process that started it."""
    command = ["ps", "-o", "rss=", "-p", str(os.getpid())]
    return int(subprocess.run(command, capture_output=True, text=True, check=True).stdout) * 1024


def image(setup: Setup) -> Facts:
    """A picture as input; the greatest difference from the numbers computed here."""
    from PIL import Image

    pixels = np.random.default_rng(2).integers(0, 255, (*PIXELS[2:], 3), np.uint8)
    model = setup.load(setup.compiled("image"))
    (output,) = model.predict({"x": Image.fromarray(pixels)}).values()
    expected = pixels.transpose(2, 0, 1)[None].astype(np.float32) + 1
    return {"dtype": str(output.dtype), "difference": float(np.abs(output - expected).max())}


def int8(setup: Setup) -> Facts:
    """An int8 output, and the numbers that should be in it."""
    values = np.arange(16, dtype=np.float32)[None] - 8
    model = setup.load(setup.compiled("int8"))
    (output,) = model.predict({"x": values}).values()
    return {"dtype": str(output.dtype), "output": output.tolist(), "expected": values.tolist()}


def interrupt(setup: Setup) -> Facts:
    """How long Ctrl-C during loads takes to end a process that uses the backend."""
    import signal

    command = [sys.executable, "-m", "pytest_ane.first_contact", "--load", str(setup.folder)]
    started = subprocess.Popen(
        [*command, setup.replay], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert started.stdout
    started.stdout.readline()  # It says that it begins to load.
    pressed = perf_counter()
    started.send_signal(signal.SIGINT)
    try:
        started.communicate(timeout=_TOOL_SECONDS)
    except subprocess.TimeoutExpired:
        started.kill()
        started.communicate()
        return {"seconds": None, "exit_code": None}
    return {"seconds": round(perf_counter() - pressed, 3), "exit_code": started.returncode}


def load_again_and_again(setup: Setup) -> None:
    """Load with the backend until Ctrl-C; a line says that it begins."""
    import signal

    from pytest_ane.backends import CoreMLBackend
    from pytest_ane.make import Cache

    # A shell lets what it starts with `&` ignore Ctrl-C; a run at a terminal does not.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    artifact = setup.package("conv-iOS18")
    cache = Cache(setup.folder / "work" / "cache", notify=lambda text: None)
    backend = CoreMLBackend(cache, "CPU_ONLY", machine=setup.machine)
    backend.load(artifact)
    print("loading", flush=True)
    while True:
        backend.load(artifact)


def gates(setup: Setup) -> Facts:
    """The gates of the shard, with the ANE where there is one and on the CPU alone."""
    units = ("CPU_ONLY",) if setup.no_ane else ("CPU_AND_NE", "CPU_ONLY")
    return {unit: _pytest(setup, unit) for unit in units}


def workers(setup: Setup) -> Facts:
    """The same gates with four processes at once."""
    return {**_pytest(setup, setup.units, "-n", "4"), "no_ane": setup.no_ane}


def _pytest(setup: Setup, units: str, *more: str) -> Facts:
    from pytest_ane.report.run import read_run

    report = setup.folder / "report.jsonl"
    command = [
        sys.executable, "-m", "pytest", "-m", "gate", "-p", "no:cacheprovider", "-q",
        "--ane-backend=coreml", f"--ane-compute-units={units}", f"--ane-report={report}",
        f"--ane-cache={setup.folder / 'work' / 'gates'}", *more,
    ]  # fmt: skip
    if setup.replay:
        command += ["-p", "pytest_ane.testing.plugin", f"--ane-replay={setup.replay}"]
    if setup.shard:
        command.append(f"--ane-shards={setup.shard}")
        command += [f"--ane-manifest={setup.manifest}"] if setup.manifest else []
    else:
        command.append(f"--ane-package={setup.package('conv-iOS18')}")
    report.unlink(missing_ok=True)
    started = perf_counter()
    done = subprocess.run(command, capture_output=True, text=True, errors="replace", check=False)
    seconds = round(perf_counter() - started, 1)
    facts = {"exit_code": done.returncode, "seconds": seconds, "end": done.stdout[-4000:]}
    if not report.exists():
        return {**facts, "stderr": done.stderr[-2000:]}
    return {**facts, "verdicts": [_verdict(row) for row in read_run(report).rows]}


def _verdict(row: Row) -> Facts:
    kept = ("gate", "subject", "status", "summary", "reasons")
    figures = {f["name"]: f["value"] for f in (row.data or {})["figures"]}
    return {**{key: getattr(row, key) for key in kept}, "figures": figures}


def evidence(setup: Setup) -> Facts:
    """Which evidence `--ane-record` keeps here, of measurements that ask for the ANE."""
    folder = setup.folder / "evidence"
    shutil.rmtree(folder, ignore_errors=True)
    options = ("--ane-record=all", "--ane-record-force", f"--ane-evidence={folder}")
    facts = _pytest(setup, "CPU_AND_NE", *options)
    recorded = [path.name for path in sorted(folder.rglob("*.json"))]
    return {**facts, "no_ane": setup.no_ane, "recorded": recorded}


def arithmetic(setup: Setup) -> Facts:
    """The programs of `record-arithmetic`; their rows go to `arithmetic.csv`."""
    from pytest_ane.experiments import EXPERIMENTS, record, to_csv

    device = Device()
    recordings = [record(make(), setup.machine, device=device) for make in EXPERIMENTS.values()]
    rows = [row for recording in recordings for row in recording.rows]
    (setup.folder / "arithmetic.csv").write_bytes(
        to_csv(rows, [f"first-contact on {setup.machine}"])
    )
    return {r.name: {"rows": len(r.rows), "reason": r.reason} for r in recordings}


@dataclass(frozen=True)
class Step:
    """A step of the kit.

    Attributes:
        measure: brings the facts.
        needs_ane: whether it is left out where the machine proves nothing of the ANE.
    """

    measure: Callable[[Setup], Facts]
    needs_ane: bool = False

    @property
    def purpose(self) -> str:
        """The first sentence of its docstring."""
        return (self.measure.__doc__ or "").partition("\n")[0]


STEPS: Mapping[str, Step] = {
    "machine": Step(machine),
    "compilers": Step(compilers),
    "plans": Step(plans),
    "load-error": Step(load_error),
    "plan-error": Step(plan_error),
    "predict-error": Step(predict_error),
    "state-error": Step(state_error),
    "package-plan": Step(package_plan),
    "stale-model": Step(stale_model),
    "loads": Step(loads),
    "state-reads": Step(state_reads),
    "image": Step(image),
    "int8": Step(int8),
    "interrupt": Step(interrupt),
    "gates": Step(gates),
    "workers": Step(workers),
    "evidence": Step(evidence),
    "arithmetic": Step(arithmetic, needs_ane=True),
}
"""In the order in which they run."""
