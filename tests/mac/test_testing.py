"""`-p pytest_ane.mac.testing`: whole runs on a replayed Mac, and tests that replay one."""

from __future__ import annotations

import os
import re
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from pytest_ane.backends import CpuBackend
from pytest_ane.mac.testing import DeviceRule, Mac, Script, SlowRunner, slowed
from tests.mlprogram.packages import doubling

PLUGIN = ("-p", "pytest_ane.mac.testing")
ASKS = """
    import subprocess

    import coremltools as ct
    from coremltools.models.compute_plan import MLComputePlan

    def device():
        compiled = ct.models.utils.compile_model("model.mlpackage")
        plan = MLComputePlan.load_from_path(compiled)
        *_, add = plan.model_structure.program.functions["main"].block.operations
        usage = plan.get_compute_device_usage_for_mlprogram_operation(add)
        return type(usage.preferred_compute_device).__name__

    def chip():
        command = ["sysctl", "-n", "machdep.cpu.brand_string"]
        return subprocess.run(command, capture_output=True, text=True).stdout.strip()
"""
WHOLE = """
    def test_the_run_is_replayed():
        assert device() == "MLGPUComputeDevice"
        assert chip() == "Apple M5"
"""
ONE = """
    from pytest_ane.mac.testing import DeviceRule, Script

    def test_cpu(coreml_replay):
        coreml_replay(Script(devices=(DeviceRule("CPU"),)))
        assert device() == "MLCPUComputeDevice"

    def test_folder(coreml_replay):
        replayer = coreml_replay("recording")
        assert replayer.script.machine.chip == chip() == "Apple M5"
        assert device() == "MLGPUComputeDevice"

    def test_afterwards_none():
        assert not ct.utils._is_macos()
"""


@pytest.fixture(scope="module", autouse=True)
def _loaded() -> None:
    """Pytester drops what a run in this process imports, and numpy cannot be imported twice."""
    from pytest_ane.mac import _answers  # noqa: F401
    from pytest_ane.make.coremltools_quiet import import_coremltools

    import_coremltools()


@pytest.fixture
def recording(pytester: pytest.Pytester) -> Path:
    doubling().save(pytester.path)
    return Script(Mac("Apple M5"), (DeviceRule("GPU"),)).save(pytester.path / "recording")


@pytest.mark.usefixtures("recording")
def test_a_whole_run(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(ASKS + WHOLE)
    before = os.environ["PATH"], "coremltools.libcoremlpython" in sys.modules
    result = pytester.runpytest_inprocess(*PLUGIN, "--ane-replay=recording")
    result.assert_outcomes(passed=1)
    result.stdout.fnmatch_lines(["Core ML: replayed from recording (Apple M5, macOS 26.1)"])
    assert (os.environ["PATH"], "coremltools.libcoremlpython" in sys.modules) == before


@pytest.mark.slow
@pytest.mark.usefixtures("recording")
def test_a_whole_run_in_processes_of_its_own(pytester: pytest.Pytester) -> None:
    """Neither the one that starts the worker nor the worker had imported coremltools before."""
    pytester.makepyfile(ASKS + WHOLE)
    result = pytester.runpytest_subprocess(*PLUGIN, "--ane-replay=recording", "-n1")
    result.assert_outcomes(passed=1)


@pytest.mark.usefixtures("recording")
@pytest.mark.skipif(sys.platform == "darwin", reason="there Core ML answers afterwards")
def test_one_test(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(ASKS + ONE)
    result = pytester.runpytest_inprocess(*PLUGIN)
    result.assert_outcomes(passed=3)
    result.stdout.no_fnmatch_line("*replayed*")


@pytest.mark.parametrize("text", [None, '{"device": []}'])
def test_a_folder_that_cannot_be_replayed(pytester: pytest.Pytester, text: str | None) -> None:
    if text:
        pytester.mkdir("recording").joinpath("script.json").write_text(text)
    result = pytester.runpytest_inprocess(*PLUGIN, "--ane-replay=recording")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines([f"ERROR: --ane-replay: {pytester.path}/recording/script.json: *"])
    result.stderr.no_fnmatch_line("*Traceback*")


def test_the_example_of_the_docs(pytester: pytest.Pytester) -> None:
    page = (Path(__file__).parents[2] / "docs/how-to/testing.md").read_text()
    (code,) = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    doubling().save(pytester.path)
    pytester.makeconftest('pytest_plugins = ["pytest_ane.mac.testing"]')
    pytester.makepyfile(code)
    pytester.runpytest_inprocess().assert_outcomes(passed=3)


def test_the_script_of_the_docs(tmp_path: Path) -> None:
    page = (Path(__file__).parents[2] / "docs/how-to/testing.md").read_text()
    (text,) = re.findall(r"```json\n(.*?)```", page, re.DOTALL)
    (tmp_path / "script.json").write_text(text)
    script = Script.load(tmp_path)
    assert script.machine == Mac()
    assert [rule.preferred for rule in script.devices] == ["CPU", "GPU", "none"]


class Instant:
    inputs = ("x",)

    def predict(self, inputs: Any, state: Any = None) -> Any:
        return {"y": inputs, "state": state}


@pytest.fixture
def load(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(CpuBackend, "load", lambda self, artifact, function=None: Instant())
    return CpuBackend().load


def test_a_call_takes_so_much_longer_and_says_the_same() -> None:
    slow = SlowRunner(Instant(), 0.02)
    start = time.perf_counter()
    assert slow.predict({"x": 1}, 2) == {"y": {"x": 1}, "state": 2}
    assert time.perf_counter() - start >= 0.02
    assert slow.inputs == ("x",)


@pytest.mark.usefixtures("load")
def test_only_what_is_named() -> None:
    with slowed({"L0*": 0.001, "L01": 0.002}):
        kinds = {n: CpuBackend().load(Path(f"{n}.mlpackage")) for n in ("L00", "L01", "head.0")}
        assert isinstance(kinds["L00"], SlowRunner)
        assert vars(kinds["L01"])["_seconds"] == pytest.approx(0.003)
        assert isinstance(kinds["head.0"], Instant)
    assert isinstance(CpuBackend().load(Path("L00.mlpackage")), Instant)


@pytest.mark.parametrize("given", ["L01", "L01:", ":5", "L01:nan", "L01:-1", "L01:x", "L01:1e9"])
def test_what_cannot_be_understood(given: str, pytester: pytest.Pytester) -> None:
    result = pytester.runpytest_inprocess("-p", "pytest_ane.mac.testing", f"--ane-slow={given}")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["*give a shard's id or a pattern, and milliseconds, such as *"])
