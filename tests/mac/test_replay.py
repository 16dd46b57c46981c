"""A replayed Mac: coremltools' classes and the machine's tools ask it, and afterwards no more."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pytest_ane.mac.testing import DeviceRule, Failure, Mac, Replayer, Script, code_14, stale
from pytest_ane.make.coremltools_quiet import import_coremltools
from tests.mlprogram.packages import doubling

X = {"x": np.ones((2, 3), np.float32)}
NATIVE = "coremltools.libcoremlpython"
SAID = {
    ("sysctl", "-n", "machdep.cpu.brand_string"): "Apple M4 Max",
    ("sysctl", "-n", "hw.model"): "Mac16,5",
    ("sysctl", "-n", "kern.hv_vmm_present"): "0",
    ("sysctl", "-n", "sysctl.proc_translated"): "0",
    ("sw_vers", "-productVersion"): "26.1",
    ("sw_vers", "-buildVersion"): "25B78",
    ("xcrun", "coremlcompiler", "version"): "3500.32.1",
}


@pytest.fixture(scope="module")
def ct() -> Any:
    return import_coremltools()


@pytest.fixture
def package(tmp_path: Path) -> Path:
    return doubling().save(tmp_path)


@pytest.fixture(scope="module")
def compiled_once(tmp_path_factory: pytest.TempPathFactory) -> Path:
    with Replayer(Script()):
        return _xcrun(doubling().save(tmp_path_factory.mktemp("compiled")))


@pytest.fixture
def compiled(compiled_once: Path, package: Path) -> Path:
    """Beside its package; a test may spoil it."""
    return shutil.copytree(compiled_once, package.parent / compiled_once.name)


def _run(*command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, capture_output=True, text=True, check=False)


def _xcrun(package: Path) -> Path:
    done = _run("xcrun", "coremlcompiler", "compile", str(package), str(package.parent))
    assert done.returncode == 0, done.stderr
    return package.parent / f"{package.stem}.mlmodelc"


def _devices(compiled: Path, units: str) -> dict[str, tuple[Any, Any]]:
    """`preferred, supported` of every operation that has a device, by type, in short words."""
    ct = import_coremltools()
    plan = ct.models.compute_plan.MLComputePlan.load_from_path(str(compiled), ct.ComputeUnit[units])
    found = {}
    for op in plan.model_structure.program.functions["main"].block.operations:
        usage = plan.get_compute_device_usage_for_mlprogram_operation(op)
        if usage is not None:
            supported = [type(one).__name__[2:5] for one in usage.supported_compute_devices]
            preferred = type(usage.preferred_compute_device).__name__[2:5]
            found[op.operator_name] = preferred, supported
    return found


def test_the_best_unit_that_is_allowed(compiled: Path) -> None:
    with Replayer(Script()):
        answers = {
            units: _devices(compiled, units)["add"]
            for units in ("ALL", "CPU_AND_NE", "CPU_AND_GPU", "CPU_ONLY")
        }
    assert answers == {
        "ALL": ("Neu", ["CPU", "GPU", "Neu"]),
        "CPU_AND_NE": ("Neu", ["CPU", "Neu"]),
        "CPU_AND_GPU": ("GPU", ["CPU", "GPU"]),
        "CPU_ONLY": ("CPU", ["CPU"]),
    }


@pytest.mark.parametrize(
    ("rule", "preferred"),
    [
        (DeviceRule("CPU", name="y"), "CPU"),
        (DeviceRule("CPU", name="z"), "Neu"),
        (DeviceRule("GPU", op="a[cd]d"), "GPU"),
        (DeviceRule("CPU", op="conv"), "Neu"),
        (DeviceRule("CPU", function="main"), "CPU"),
        (DeviceRule("CPU", function="other"), "Neu"),
        (DeviceRule("CPU", units=("ALL",)), "Neu"),
        (DeviceRule("CPU", units=("ALL", "CPU_AND_NE")), "CPU"),
    ],
)
def test_rules(compiled: Path, rule: DeviceRule, preferred: str) -> None:
    with Replayer(Script(devices=(rule,))):
        assert _devices(compiled, "CPU_AND_NE")["add"][0] == preferred


def test_the_first_rule_that_matches_counts(compiled: Path) -> None:
    rules = (DeviceRule("CPU", op="mul"), DeviceRule("GPU", op="add"), DeviceRule("CPU"))
    with Replayer(Script(devices=rules)):
        assert _devices(compiled, "ALL")["add"][0] == "GPU"
    with Replayer(Script(devices=(DeviceRule("none"),))):
        assert _devices(compiled, "ALL") == {}


def test_constants_have_no_device_whatever_the_rules_say(compiled: Path) -> None:
    with Replayer(Script(devices=(DeviceRule("CPU", op="const"),))):
        assert list(_devices(compiled, "ALL")) == ["add"]


def test_a_broken_cache_is_of_a_path(compiled: Path, tmp_path: Path) -> None:
    copy = compiled.rename(tmp_path / "copy.mlmodelc")
    with Replayer(Script()):
        compiled = _xcrun(tmp_path / "model.mlpackage")
    with Replayer(Script(unassigned_paths=1)):
        assert [len(_devices(path, "ALL")) for path in (compiled, compiled, copy)] == [0, 0, 1]


def test_the_machine_s_tools() -> None:
    with Replayer(Script()):
        assert {command: _run(*command).stdout.strip() for command in SAID} == SAID
        assert _run("sysctl", "-n", "hw.nothing").stderr == "sysctl: unknown oid 'hw.nothing'\n"
        assert _run("sw_vers").stdout.split() == [
            "ProductName:", "macOS", "ProductVersion:", "26.1", "BuildVersion:", "25B78"
        ]  # fmt: skip
        assert _run("xcrun", "swift").returncode == 72


def test_a_name_that_a_shell_would_run(tmp_path: Path) -> None:
    hostile = f"$(touch {tmp_path}/ran)'; touch {tmp_path}/ran; {{0}}"
    with Replayer(Script(Mac(chip=hostile, compiler=hostile, model=hostile))):
        assert _run("sysctl", "-n", "hw.model").stdout.strip() == hostile
        assert _run("sysctl", "-n", "machdep.cpu.brand_string").stdout.strip() == hostile
        assert _run("xcrun", "coremlcompiler", "version").stdout.strip() == hostile
    assert not (tmp_path / "ran").exists()


def test_without_cores_there_is_no_neural_engine(compiled: Path, ct: Any) -> None:
    from coremltools.models.compute_device import MLComputeDevice

    rules = (DeviceRule("ANE", op="add"),)
    with Replayer(Script(Mac(cores=0), rules)):
        devices = [type(d).__name__ for d in MLComputeDevice.get_all_compute_devices()]
        assert devices == ["MLCPUComputeDevice", "MLGPUComputeDevice"]
        assert _devices(compiled, "CPU_AND_NE") == {"add": ("CPU", ["CPU"])}
        assert _devices(compiled, "ALL") == {"add": ("GPU", ["CPU", "GPU"])}


def test_predictions_are_computed(compiled: Path, package: Path, ct: Any) -> None:
    with Replayer(Script()):
        for model in (ct.models.CompiledMLModel(str(compiled)), ct.models.MLModel(str(package))):
            assert model.predict(dict(X))["y"].tolist() == [[2, 2, 2]] * 2
            assert [out["y"][0, 0] for out in model.predict([dict(X), dict(X)])] == [2, 2]


def test_failures_come_in_order(compiled: Path, ct: Any) -> None:
    failures = (Failure("predict", "later", after=1), Failure("predict", "third {path}", after=2))
    with Replayer(Script(failures=failures)):
        model = ct.models.CompiledMLModel(str(compiled))
        assert "y" in model.predict(dict(X))
        with pytest.raises(RuntimeError, match=r"^later$"):
            model.predict(dict(X))
        with pytest.raises(RuntimeError, match=rf"^third {compiled}$"):
            model.predict(dict(X))
        assert "y" in model.predict(dict(X))


@pytest.mark.slow
def test_failures_of_a_path_of_loading_and_of_compiling(compiled: Path, ct: Any) -> None:
    package = str(compiled.with_suffix(".mlpackage"))
    failures = (
        Failure("load", "not this one", path="*.mlmodelc", times=None),
        Failure("compile", "first in coremltools, then in xcrun", times=2),
    )
    with Replayer(Script(failures=failures)):
        assert ct.models.MLModel(package).predict(dict(X))
        for _ in range(2):
            with pytest.raises(RuntimeError, match="not this one"):
                ct.models.CompiledMLModel(str(compiled))
        with pytest.raises(RuntimeError, match="first in coremltools"):
            ct.models.utils.compile_model(package)
        again = ("xcrun", "coremlcompiler", "compile", package, str(compiled / "new"))
        assert _run(*again).stderr == "coremlc: error: first in coremltools, then in xcrun\n"
        assert _run(*again).returncode == 0


def test_what_another_build_compiled_fails_until_it_is_compiled_again(
    compiled: Path, ct: Any
) -> None:
    script = Script(Mac(build="25C56"), failures=(stale("plan"), stale("load")))
    with Replayer(script):
        with pytest.raises(RuntimeError, match=r"/model\.mil' with error code: -14\.$"):
            _devices(compiled, "ALL")
        with pytest.raises(RuntimeError, match=r"error code: -14\.$"):
            ct.models.CompiledMLModel(str(compiled))
        again = Path(ct.models.utils.compile_model(str(compiled.with_suffix(".mlpackage"))))
        assert _devices(again, "ALL")
        assert ct.models.CompiledMLModel(str(again)).predict(dict(X))


def test_counts_start_anew(compiled: Path) -> None:
    replayer = Replayer(Script(failures=(code_14(),)))
    for _ in range(2):
        with replayer:
            with pytest.raises(RuntimeError, match="-14"):
                _devices(compiled, "ALL")
            assert _devices(compiled, "ALL")


def test_a_plan_of_a_package_would_end_the_process(package: Path) -> None:
    with Replayer(Script()), pytest.raises(RuntimeError, match="Core ML would end this process"):
        _devices(package, "ALL")


@pytest.fixture
def unchanged(ct: Any) -> Iterator[None]:
    def state() -> list[Any]:
        modules = [m for name, m in sys.modules.items() if name.startswith("coremltools")]
        names = ("_MLModelProxy", "_MLComputePlanProxy", "_is_macos", "_macos_version", "_IS_MACOS")
        found = [vars(m).get(name) for m in modules if m for name in names]
        return [NATIVE in sys.modules, hasattr(ct, "libcoremlpython"), os.environ["PATH"], found]

    before = state()
    yield
    assert state() == before


@pytest.mark.usefixtures("unchanged")
def test_afterwards_all_is_as_before(compiled: Path, ct: Any) -> None:
    before = ct.models.utils._is_macos()
    with Replayer(Script(Mac(os="26.2"))):
        assert ct.models.utils._is_macos()
        assert ct.models.utils._macos_version() == (26, 2)
        cores = [d.total_core_count for d in ct.models.MLModel.get_available_compute_devices()[2:]]
        assert cores == [16]
    with pytest.raises(ZeroDivisionError), Replayer(Script()):
        _ = 1 / 0
    assert ct.models.utils._is_macos() is before


@pytest.mark.usefixtures("unchanged")
def test_one_within_another(compiled: Path) -> None:
    with Replayer(Script(devices=(DeviceRule("GPU"),))):
        with Replayer(Script(devices=(DeviceRule("CPU"),))):
            assert _devices(compiled, "ALL")["add"][0] == "CPU"
        assert _devices(compiled, "ALL")["add"][0] == "GPU"
