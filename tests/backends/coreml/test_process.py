"""Core ML in a process of its own: what crosses, time limits, crashes, memory, no orphans."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pytest_ane.backends import CoreMLBackend
from pytest_ane.backends.coreml import process
from pytest_ane.gates.placement.measure import plan_on_device
from pytest_ane.mac.testing import Failure, Mac, Script
from pytest_ane.make import Cache
from pytest_ane.mlprogram.errors import ExecutionError
from pytest_ane.mlprogram.model import read_model
from tests.backends.coreml.test_runner import counter
from tests.mlprogram.packages import Program, doubling
from tests.signals import heed_ctrl_c

X = {"x": np.arange(6, dtype=np.float32).reshape(2, 3)}
Become = Callable[[Script], None]


@pytest.fixture
def package(tmp_path: Path) -> Path:
    return doubling().save(tmp_path)


def on(tmp_path: Path, timeout: float | None = 60) -> CoreMLBackend:
    return CoreMLBackend(Cache(tmp_path / "cache"), device=process.Device(timeout))


@pytest.mark.slow
def test_a_child_loads_predicts_and_plans_as_this_process_does(
    mac: Become, package: Path, tmp_path: Path
) -> None:
    mac(Script(Mac(compiler="")))
    child, here = on(tmp_path), on(tmp_path, None)
    expected = here.load(package).predict(X)["y"]
    output = child.load(package).predict(X)["y"]
    assert output.tobytes() == expected.tobytes()
    assert output.flags.writeable
    program = read_model(package)
    assert plan_on_device(child, package, program) == plan_on_device(here, package, program)


@pytest.mark.slow
def test_large_arrays_cross_unharmed(mac: Become, tmp_path: Path) -> None:
    mac(Script(Mac(compiler="")))
    shape = (1024, 1025)
    program = Program()
    program.input("x", shape)
    program.op("add", "y", shape=shape, x="x", y="x")
    program.output("y")
    package = program.save(tmp_path)
    x = np.random.default_rng(0).standard_normal(shape).astype(np.float16).astype(np.float32)
    runner = on(tmp_path).load(package)
    first = runner.predict({"x": x})["y"]
    second = runner.predict({"x": -x})["y"]
    assert first.tobytes() == (2 * x).tobytes()
    assert second.tobytes() == (-2 * x).tobytes()


@pytest.mark.slow
def test_states_stay_in_the_child_and_cross_as_copies(mac: Become, tmp_path: Path) -> None:
    mac(Script(Mac(compiler="")))
    package = counter(tmp_path)
    runner = on(tmp_path).load(package)
    state = runner.make_state()
    ((name, value),) = runner.read_states(state).items()
    runner.write_states(state, {name: value + 3})
    assert runner.read_states(state)[name].tolist() == (value + 3).tolist()
    with pytest.raises(ExecutionError, match="could not read a state: no state 'gone'"):
        runner.read_states(state, ["gone"])


def ask(backend: CoreMLBackend, at: str, package: Path) -> object:
    """Ask for what fails: `compile`, `load`, `plan`, `predict` or `state`."""
    if at == "plan":
        return plan_on_device(backend, package, read_model(package))
    runner = backend.load(package)
    return runner.make_state() if at == "state" else runner.predict(X)


def package_for(at: str, tmp_path: Path) -> Path:
    return counter(tmp_path) if at == "state" else doubling().save(tmp_path)


POINTS = {
    "compile": "compiling",
    "load": "loading",
    "plan": "planning",
    "predict": "predicting",
    "state": "making states",
}


def points(quick: str) -> list[Any]:
    """All of them, slow but for the quick one: each starts two or three children."""
    return [at if at == quick else pytest.param(at, marks=pytest.mark.slow) for at in POINTS]


@pytest.mark.slow
@pytest.mark.drawn
@pytest.mark.parametrize("at", points(quick="predict"))
def test_a_crash_is_one_sentence_and_the_next_call_has_a_new_child(
    mac: Become, tmp_path: Path, at: Any
) -> None:
    mac(Script(Mac(compiler=""), failures=(Failure(at, effect="abort"),)))
    backend, package = on(tmp_path), package_for(at, tmp_path)
    with pytest.raises(ExecutionError) as raised:
        ask(backend, at, package)
    assert str(raised.value).startswith(
        f"{package}: Core ML crashed while {POINTS[at]} (SIGABRT); see whether it runs with "
        "--ane-compute-units=CPU_ONLY"
    )
    assert ask(backend, at, package) is not None


@pytest.mark.drawn
@pytest.mark.parametrize("at", points(quick="load"))
@pytest.mark.slow
def test_a_hang_is_one_sentence_and_is_not_waited_for_twice(
    mac: Become, tmp_path: Path, at: Any
) -> None:
    mac(Script(Mac(compiler=""), failures=(Failure(at, effect="hang"),)))
    backend, package = on(tmp_path, 2), package_for(at, tmp_path)
    with pytest.raises(ExecutionError) as raised:
        ask(backend, at, package)
    assert str(raised.value) == (
        f"{package}: Core ML had not finished {POINTS[at]} after 2 seconds and was ended; allow "
        "more with --ane-device-timeout, or see whether it runs with --ane-compute-units=CPU_ONLY."
    )
    ended = backend.device._child
    with pytest.raises(ExecutionError, match="had not finished"):
        ask(backend, at, package)
    assert backend.device._child is ended, "no child was started for it"
    other = doubling().save(tmp_path / "other")
    assert backend.load(other).predict(X)["y"][0, 1] == 2


@pytest.mark.slow
def test_a_model_outlives_the_crash_of_another_and_its_states_do_not(
    mac: Become, tmp_path: Path
) -> None:
    bad = doubling().save(tmp_path / "bad")
    failure = Failure("predict", effect="abort", after=1)
    mac(Script(Mac(compiler=""), failures=(failure,)))
    backend = on(tmp_path)
    stateful = backend.load(counter(tmp_path / "good"))
    state = stateful.make_state()
    runner = backend.load(bad)
    runner.predict(X)
    with pytest.raises(ExecutionError, match="crashed while predicting"):
        runner.predict(X)
    assert runner.predict(X)["y"][0, 1] == 2
    with pytest.raises(ExecutionError, match="its states were lost when Core ML's process ended"):
        stateful.read_states(state)
    assert stateful.read_states(stateful.make_state())


def test_a_process_that_no_signal_reaches_is_left_alone() -> None:
    class Unkillable:
        def wait(self, timeout: float) -> int:
            raise subprocess.TimeoutExpired("python", timeout)

    stuck: Any = Unkillable()
    assert process._ending(process._waited(stuck)) == "it does not end"


def resident_memory() -> int:
    """Bytes; `getrusage` would tell the peak of the process that started this one."""
    command = ["ps", "-o", "rss=", "-p", str(os.getpid())]
    return int(subprocess.run(command, capture_output=True, check=True).stdout) * 1024


def is_running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


@pytest.mark.slow
def test_memory_stays_flat_over_many_loads(
    mac: Become, package: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process, "MOST_LOADS", 8)
    mac(Script(Mac(compiler=""), leak=32 << 20))
    backend, children, most = on(tmp_path), set(), 0
    kept = backend.load(package)
    for _ in range(22):  # Compiling and the load above count too.
        kept = backend.load(package)
        child = backend.device._child
        assert child is not None
        children.add(child._process.pid)
        most = max(most, backend.device.call(child, "", "measuring", resident_memory))
    assert kept.predict(X)["y"][0, 1] == 2
    assert len(children) == 3
    assert most < (8 * 32 << 20) + (400 << 20)
    assert len([pid for pid in children if is_running(pid)]) == 1, "earlier ones have ended"


_RUN = """
import sys, time
from pathlib import Path
import numpy as np
from pytest_ane.backends import CoreMLBackend
from pytest_ane.backends.coreml.process import Device
from pytest_ane.make import Cache
from pytest_ane.mac.testing import Failure, Mac, Replayer, Script
package, cache = map(Path, sys.argv[1:])
with Replayer(Script(Mac(compiler=""), failures=(Failure("predict", effect="hang"),))):
    backend = CoreMLBackend(Cache(cache), device=Device(timeout=3))
    runner = backend.load(package)
    print("loaded", flush=True)
    if not package.with_name("idle").exists():
        runner.predict({"x": np.zeros((2, 3), np.float32)})
    time.sleep(60)
"""


@pytest.mark.drawn
@pytest.mark.parametrize(
    ("ending", "idle", "within"),
    [
        (signal.SIGINT, False, 2),
        pytest.param(signal.SIGKILL, True, 2, marks=pytest.mark.slow),
        pytest.param(signal.SIGKILL, False, 12, marks=pytest.mark.slow),
    ],
)
@pytest.mark.slow
def test_no_child_outlives_its_parent(
    package: Path, tmp_path: Path, ending: signal.Signals, idle: bool, within: float
) -> None:
    """Ctrl-C ends it at once, the pipe's end an idle one, an alarm one that hangs in a call."""
    if idle:
        package.with_name("idle").touch()
    command = [sys.executable, "-c", _RUN, str(package), str(tmp_path / "cache")]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, preexec_fn=heed_ctrl_c
    ) as parent:
        assert parent.stdout is not None
        assert parent.stdout.readline() == "loaded\n"
        time.sleep(0.5)
        parent.send_signal(ending)
        # The child has this stderr too, so that its end is the end of both.
        _, stderr = parent.communicate(timeout=within)
    assert ("KeyboardInterrupt" in stderr) == (ending == signal.SIGINT)
