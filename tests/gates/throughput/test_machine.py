"""What two runs must share, and what is only noted."""

from __future__ import annotations

import platform
from pathlib import Path

import pytest

from pytest_ane.backends import CpuBackend
from pytest_ane.gates.throughput import machine

TOOLS = {
    ("sysctl", "-n", "machdep.cpu.brand_string"): "Apple M4 Max",
    ("pmset", "-g", "batt"): "Now drawing from 'Battery Power'\n -InternalBattery-0 80%\n",
    ("pmset", "-g"): "Currently in use:\n lowpowermode         1\n sleep                1\n",
    ("pmset", "-g", "therm"): "Note\n\tCPU_Scheduler_Limit \t= 100\n\tCPU_Speed_Limit \t= 70\n",
}


class OnDevice:
    name, on_device = "coreml", True

    def provenance(self) -> dict[str, str]:
        return {
            "backend": "coreml", "chip": "Apple M4 Max", "os": "macOS 26.1", "os_build": "25B78",
            "mac": "Mac16,5", "compute_units": "CPU_AND_NE", "numpy": "2.3",
            "compiler": "coremlcompiler 3500",
            "pytest-ane": "0.1", "coremltools": "9.0", "python": "3.12.1",
        }  # fmt: skip


@pytest.fixture
def mac(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(platform, "system", lambda: "Darwin")
    monkeypatch.setattr(platform, "node", lambda: "studio")
    monkeypatch.setattr(machine, "_output", lambda *command: TOOLS[command])


@pytest.mark.usefixtures("mac")
def test_a_mac() -> None:
    assert machine.identity(OnDevice()) == {
        "backend": "coreml",
        "chip": "Apple M4 Max",
        "os_build": "25B78",
        "compute_units": "CPU_AND_NE",
        "model": "Mac16,5",
    }
    state = machine.state(OnDevice())
    assert state["power"] == "Battery Power"
    assert state["power_mode"] == "low"
    assert state["thermal"] == "CPU_Scheduler_Limit 100, CPU_Speed_Limit 70"
    assert state["host"] == "studio"
    assert state["compiler"] == "coremlcompiler 3500"
    assert not state.keys() & machine.identity(OnDevice()).keys()
    found = machine.identity(CpuBackend())
    assert (found["chip"], "os_build" in found) == ("Apple M4 Max", False)


def test_tools_that_fail_say_nothing_and_a_replayed_mac_is_no_mac() -> None:
    assert machine._output("no-such-tool-of-macos") == ""
    assert machine._output("false") == ""
    replayed = OnDevice()
    known = replayed.provenance() | {"native": "replaced"}
    replayed.provenance = lambda: known
    assert machine.identity(replayed)["native"] == "replaced"


@pytest.mark.parametrize(
    ("text", "chip"),
    [
        ("processor\t: 0\nmodel name\t: AMD EPYC 9R45\n\nmodel name\t: other\n", "AMD EPYC 9R45"),
        ("CPU implementer\t: 0x41\nCPU part\t: 0xd4f\n", "implementer 0x41 part 0xd4f"),
    ],
)
def test_the_chip_of_linux(
    text: str, chip: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "cpuinfo").write_text(text)
    monkeypatch.setattr(platform, "system", lambda: "Linux")
    monkeypatch.setattr(machine, "_CPUINFO", tmp_path / "cpuinfo")
    assert machine.identity(CpuBackend())["chip"] == chip


def test_the_same_machine_is_the_same_twice_and_other_threads_are_another(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("OPENBLAS_NUM_THREADS", "1")
    one = machine.identity(CpuBackend())
    assert one == machine.identity(CpuBackend())
    assert one["threads"] == "1 BLAS thread"
    monkeypatch.setenv("OPENBLAS_NUM_THREADS", "2")
    assert machine.identity(CpuBackend())["threads"] == "2 BLAS threads"
    monkeypatch.delenv("OPENBLAS_NUM_THREADS")
    assert machine.identity(CpuBackend())["threads"] == "all BLAS threads"


def test_a_system_without_loads_or_affinity(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr("os.getloadavg", raising=False)
    monkeypatch.delattr("os.sched_getaffinity", raising=False)
    assert "load" not in machine.state(CpuBackend())
    assert machine.identity(CpuBackend())["cores"].endswith(("core", "cores"))


def test_the_control_workload_is_the_median_of_its_readings(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(machine, "_PRODUCTS", 1)
    readings = [1.0, 9.0, 3.0, 2.0, 8.0]
    moments = iter([moment for seconds in readings for moment in (0.0, seconds)])
    assert machine.control(lambda: next(moments)) == 3.0
    assert next(moments, None) is None
