"""Plans of a device, every path of them, with coremltools' own classes on a replayed Mac."""

from __future__ import annotations

import errno
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple, TypeVar

import pytest

from pytest_ane.backends.coreml import CoreMLBackend
from pytest_ane.backends.coreml.process import Device
from pytest_ane.gates.placement import judge
from pytest_ane.gates.placement.measure import _device, measure, plan_on_device, to_record
from pytest_ane.gates.placement.plans import Plan, coremltools, summarise
from pytest_ane.gates.verdict import Verdict
from pytest_ane.mac.first_contact import package
from pytest_ane.mac.testing import DeviceRule, Replayer, Rewrite, Script
from pytest_ane.make import Cache
from pytest_ane.manifest.policy import PlacementPolicy
from pytest_ane.mlprogram.errors import ExecutionError, UnprovenError
from pytest_ane.mlprogram.model import read_model
from tests import device_models

T = TypeVar("T")


class Compiling:
    """Compiles with coremltools."""

    device = Device(timeout=None)

    def __init__(self, folder: Path, units: str = "CPU_AND_NE") -> None:
        self.folder, self.units, self.said = folder, units, list[str]()

    def say(self, text: str) -> None:
        self.said.append(text)

    def with_compiled(self, artifact: Path, use: Callable[[Path], T]) -> T:
        from coremltools.models.utils import compile_model

        target = self.folder / f"{artifact.stem}.mlmodelc"
        if not target.exists():
            compile_model(str(artifact), str(target))
        return use(target)


class Asked(NamedTuple):
    plan: Plan
    said: list[str]

    def devices(self) -> dict[str, int]:
        """Compute ops by device."""
        return dict(summarise(self.plan).devices)

    def device(self, name: str) -> Any:
        return next(one for _, one in self.plan.walk() if one.name == name).preferred


Ask = Callable[..., Asked]


def judged(plan: Plan) -> Verdict:
    return judge(plan, PlacementPolicy(), "a")


@pytest.fixture(scope="module")
def packages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return device_models.save(tmp_path_factory.mktemp("packages"))


@pytest.fixture
def ask(packages: dict[str, Path], tmp_path: Path) -> Ask:
    def asked(name: str, *rules: DeviceRule, units: str = "CPU_AND_NE", **script: Any) -> Asked:
        backend = Compiling(tmp_path, units)
        program = read_model(packages[name], weights=False)
        with Replayer(Script(devices=rules, **script)):
            return Asked(plan_on_device(backend, packages[name], program), backend.said)

    return asked


def test_resident(ask: Ask) -> None:
    asked = ask("conv")
    summary = summarise(asked.plan)
    assert (summary.conv_ane, summary.conv_total, summary.compute) == (2, 2, 3)
    assert (dict(summary.compile_time), summary.boundary_casts) == ({"const": 14}, 2)
    assert judged(asked.plan).status == "passed"
    assert (asked.plan.source, asked.plan.compute_units) == ("coremltools", "CPU_AND_NE")
    assert (asked.plan.ane_cores, asked.said) == (16, [])


GPU = DeviceRule("GPU", op="conv", units=("ALL",))
RELU = ("r_cast_fp16", "run on the CPU instead of the ANE")


@pytest.mark.parametrize(
    ("name", "rules", "rewrites", "units", "devices", "off"),
    [
        ("conv", [DeviceRule("CPU", op="relu")], (), "CPU_AND_NE", {"ANE": 2, "CPU": 1}, [RELU]),
        ("conv", [DeviceRule("none", name="second*")], (), "CPU_AND_NE", {"ANE": 2},
         [("second_cast_fp16", "have no device")]),
        # On the GPU as soon as it may; what could run on the ANE is not there.
        ("conv", [GPU], (), "CPU_AND_NE", {"ANE": 3}, []),
        ("conv", [GPU], (), "ALL", {"ANE": 1, "GPU": 2},
         [(f"{n}_cast_fp16", "run on the GPU instead of the ANE") for n in ("first", "second")]),
        ("state", [], (), "CPU_AND_NE", None, []),
        # What the compiler adds, renames or folds; a renamed op has the package's name.
        ("conv", [], [("r_*", "rename"), ("first*", "cast")], "CPU_AND_NE", {"ANE": 3}, []),
        ("conv", [], [("r_*", "fold")], "CPU_AND_NE", {"ANE": 2}, []),
        ("conv", [DeviceRule("CPU", op="relu")], [("r_*", "rename")], "CPU_AND_NE",
         {"ANE": 2, "CPU": 1}, [RELU]),
        ("conv", [DeviceRule("CPU", name="first*_cast")], [("first*", "cast")], "CPU_AND_NE",
         {"ANE": 3, "CPU": 1}, [("first_cast_fp16_cast", RELU[1])]),
        ("conv", [], [("first*", "fold")], "CPU_AND_NE", {"ANE": 2},
         [("first_cast_fp16", "have no device")]),
        # No name is the package's: it is another program.
        ("conv", [], [("first*", "rename"), ("r_*", "rename")], "CPU_AND_NE", None, [("", "")]),
    ],
)  # fmt: skip
def test_where_operations_run(
    name: str, rules: Any, rewrites: Any, units: str, devices: Any, off: Any, ask: Ask
) -> None:
    asked = ask(name, *rules, units=units, rewrites=tuple(Rewrite(*each) for each in rewrites))
    verdict = judged(asked.plan)
    assert [(f.where.op, f.kind) for f in verdict.reasons] == off
    assert verdict.status == ("passed" if not off else "failed" if devices else "unproven")
    if devices is not None:
        assert asked.devices() == devices


def test_a_broken_cache_is_read_again_from_a_copy(ask: Ask, packages: dict[str, Path]) -> None:
    asked = ask("conv", unassigned_paths=1)
    (said,) = asked.said
    assert said == (
        f"{packages['conv']}: no operation has a device; the plan is read once more, from a copy "
        "at another path, in case Core ML's cache is broken."
    )
    assert judged(asked.plan).status == "passed"


def test_a_copy_without_a_device_is_inconclusive(ask: Ask, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = ask("conv", unassigned_paths=2)
    assert len(asked.said) == 1
    verdict = judged(asked.plan)
    assert verdict.status == "unproven"
    assert "nor in a copy" in verdict.reasons[0].reason

    def full(source: Path, target: Path) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(shutil, "copytree", full)
    with pytest.raises(ExecutionError, match=r"\(No space left on device\); free space, or set TM"):
        ask("conv", unassigned_paths=1)


def test_nested_blocks(ask: Ask) -> None:
    asked = ask("branches", DeviceRule("CPU", op="t*"), DeviceRule("CPU", op="cos"))
    scopes = {one.op: one.scope for _, one in asked.plan.walk() if one.op in ("sin", "cos", "tanh")}
    assert {op: scope[-1][1] for op, scope in scopes.items()} == {"sin": 0, "cos": 1, "tanh": 1}
    off = {one.op for _, one in summarise(asked.plan).off}
    assert off == {"cos", "tanh"}
    assert asked.plan.unmatched == ()


def test_several_functions(ask: Ask) -> None:
    asked = ask("functions", DeviceRule("CPU", function="two", op="relu"))
    assert [function.name for function in asked.plan.functions] == ["one", "two"]
    assert [function for function, _ in summarise(asked.plan).off] == ["two"]
    assert asked.devices()["ANE"] == 5


def test_python_without_core_ml(ask: Ask, monkeypatch: pytest.MonkeyPatch) -> None:
    module = sys.modules["pytest_ane.gates.placement.measure"]
    monkeypatch.setattr(module, "_FIRST_WITHOUT", (3, 0))
    with pytest.raises(ExecutionError, match=r"with Python 3\.13 and older; this is 3\.\d+\.$"):
        ask("conv")


def test_a_package_is_never_planned(packages: dict[str, Path]) -> None:
    class Raw(Compiling):
        def with_compiled(self, artifact: Path, use: Callable[[Path], T]) -> T:
            return use(artifact)

    program = read_model(packages["conv"], weights=False)
    with Replayer(Script()), pytest.raises(ExecutionError, match=r"is no \.mlmodelc; reading"):
        plan_on_device(Raw(packages["conv"]), packages["conv"], program)


@pytest.mark.parametrize(
    ("pipeline", "sentence"),
    [
        (object(), r"a: is a pipeline, not one ML Program; plan its models one by one\.$"),
        (None, r'a: is a neural network, .*; convert it again with convert_to="mlprogram"\.$'),
    ],
)
def test_what_is_no_program(pipeline: Any, sentence: str) -> None:
    structure = SimpleNamespace(program=None, pipeline=pipeline)
    with pytest.raises(ExecutionError, match=sentence):
        to_record(SimpleNamespace(model_structure=structure), "ALL", "a")


def test_a_device_of_the_future() -> None:
    with pytest.raises(ExecutionError, match="names a object, which is no CPU, GPU or Neural"):
        _device(object(), [])


def test_a_joined_plan_is_the_same_from_its_file(ask: Ask) -> None:
    rewrites = (Rewrite("r_*", "fold"), Rewrite("first*", "cast"))
    plan = ask("conv", rewrites=rewrites).plan
    again = coremltools.read(coremltools.write(plan))
    assert summarise(again) == summarise(plan)


@pytest.mark.parametrize(("target", "words"), [("iOS17", "for iOS 17"), ("iOS16", "for iOS 16")])
def test_no_usage_names_a_low_target_first(
    target: str, words: str, tmp_path: Path, packages: dict[str, Path]
) -> None:
    path = package(f"conv-{target}", tmp_path)
    with Replayer(Script(devices=(DeviceRule("none"),))):
        plan = plan_on_device(Compiling(tmp_path), path, read_model(path, weights=False))
    (finding,) = judged(plan).reasons
    assert words in finding.reason
    assert "minimum_deployment_target=ct.target.iOS18" in finding.remedy


@pytest.fixture
def measured(packages: dict[str, Path], tmp_path: Path) -> Callable[..., Plan]:
    def measured(function: str, artifact: Path = packages["functions"]) -> Plan:
        with Replayer(Script(default_function_only=True)):
            cache = Cache(tmp_path / "cache", notify=lambda text: None)
            backend = CoreMLBackend(cache, device=Device(None))
            found = measure(
                backend,
                artifact,
                read_model(artifact, weights=False, function=function),
                size_bytes=1,
            )
        assert isinstance(found, Plan)
        return found

    return measured


def test_another_function_of_a_compiled_model_is_unproven(
    measured: Callable[..., Plan], packages: dict[str, Path], tmp_path: Path
) -> None:
    from coremltools.models.utils import compile_model

    with Replayer(Script()):
        compiled = Path(compile_model(str(packages["functions"]), str(tmp_path / "f.mlmodelc")))
    with pytest.raises(UnprovenError, match=r"and not `two`; give the \.mlpackage that it was"):
        measured("two", compiled)


def test_another_function_in_a_package_of_its_own(measured: Callable[..., Plan]) -> None:
    plan = measured("two")
    assert [function.name for function in plan.functions] == ["two"]
    assert judged(plan).status == "passed"
