"""Core ML in a process of its own, with a time limit on every call.

No call of coremltools' native module releases the GIL, a compute plan is waited for without a limit
(`coremlpython/CoreMLPython.mm`), and an Objective-C exception ends the process. So a child process
makes the calls: the parent waits with the GIL released, ends a child that hangs, and starts another
one after a crash.

A request is a module's function with its arguments. Objects of Core ML stay in the child, which
keeps them under a number; numpy arrays, names and plain values cross. Large arrays cross in two
memory-mapped files without a name, one a direction, which the system frees with the processes.
"""

from __future__ import annotations

import importlib
import mmap
import os
import pickle
import signal
import subprocess
import sys
import tempfile
import threading
import weakref
from collections.abc import Callable, Sequence
from contextlib import suppress
from itertools import accumulate, count
from multiprocessing.connection import Connection, Pipe
from typing import IO, Any, TypeVar

import numpy as np

from pytest_ane.backends.coreml.machine import NAME, coremltools
from pytest_ane.mlprogram.arrays import Array
from pytest_ane.mlprogram.errors import AneError, BackendError, ExecutionError

T = TypeVar("T")
DEVICE_TIMEOUT = 600.0
"""Seconds; the first compilation of a large shard for the ANE takes minutes."""
_LONGEST = 604_800.0
"""Seconds, a week; the system's clocks for one wait take no time without end."""
MOST_LOADS = 32
"""Models and plans that one child loads; Core ML does not return all of their memory."""
_LARGE = 1 << 16
"""Bytes of an array that does not go through the pipe."""
_ALIGNED = 64
_START = 120.0
"""Seconds in which coremltools is imported; no model is loaded yet."""
_GRACE = 5.0
_LAST_WAIT = 10.0
"""Seconds until a process is left alone that was killed and is still there."""
_NOT_NEEDED = ("torch", "tensorflow", "sklearn", "xgboost")
"""coremltools imports them for its converters, which takes seconds."""
_COMMAND = (
    "import sys; sys.path[:] = sys.argv[4:]; from pytest_ane.backends.coreml.process import serve; "
    "serve(*map(int, sys.argv[1:4]))"
)


class Device:
    """Runs functions in a child process of Core ML; in this one where there is no timeout."""

    def __init__(self, timeout: float | None = DEVICE_TIMEOUT) -> None:
        self._timeout = None if timeout is None else min(timeout, _LONGEST)
        self._child: _Child | None = None
        self._hung: dict[str, ExecutionError] = {}

    @property
    def seconds(self) -> float:
        """That a call may take; the default where Core ML's own have no limit."""
        return self._timeout or DEVICE_TIMEOUT

    def load(self, subject: str, path: str, units: str, function: str | None) -> Any:
        """A `CompiledMLModel`, here or in the child; a refusal is a `RuntimeError`."""
        if self._in_process():
            return _load(path, units, function)
        return _Model(self, subject, (path, units, function))

    def run(self, subject: str, doing: str, function: Callable[..., T], *arguments: Any) -> T:
        """What a module's function gives; messages name the subject, and say `doing`."""
        if self._in_process():
            return function(*arguments)
        return self.call(self.child(subject), subject, doing, function, *arguments)

    def child(self, subject: str) -> _Child:
        """A child that may load one more; a subject that hung before is not waited for again."""
        if subject in self._hung:
            raise self._hung[subject]
        if self._child is None or self._child.is_dead or self._child.loads >= MOST_LOADS:
            self._child = None
            self._child = _Child(self._timeout or DEVICE_TIMEOUT, _installer() or ())
        self._child.loads += 1
        return self._child

    def call(
        self, child: _Child, subject: str, doing: str, function: Callable[..., T], *arguments: Any
    ) -> T:
        """A call in a child, whose end becomes one sentence."""
        try:
            return child.call(function, arguments)
        except TimeoutError:
            self._hung[subject] = ExecutionError(
                f"{subject}: Core ML had not finished {doing} after {self._timeout:g} seconds and "
                "was ended; allow more with --ane-device-timeout, or see whether it runs with "
                "--ane-compute-units=CPU_ONLY."
            )
            raise self._hung[subject] from None
        except EOFError as error:
            raise ExecutionError(
                f"{subject}: Core ML crashed while {doing} ({error}); see whether it runs with "
                "--ane-compute-units=CPU_ONLY, and report the crash to Apple with its log "
                "(Console, Crash Reports)."
            ) from None

    def _in_process(self) -> bool:
        return self._timeout is None or _installer() is None


def _installer() -> tuple[str, ...] | None:
    """What installs a replaced native module in a child; None where it cannot."""
    installer: tuple[str, ...] | None = getattr(sys.modules.get(NAME), "INSTALLER", ())
    return installer


class _Model:
    """A model in a child. After a crash it is loaded again, in the next child."""

    def __init__(self, device: Device, subject: str, loaded: tuple[str, str, str | None]) -> None:
        self._device, self._subject, self._loaded = device, subject, loaded
        self._kept = self._load()

    def _load(self) -> _Kept:
        child = self._device.child(self._subject)
        return _Kept(child, self._call(child, "loading", _keep, _load, *self._loaded))

    def predict(self, arguments: dict[str, Any], state: _State | None = None) -> dict[str, Any]:
        if state is not None:
            return state.predict(arguments)
        kept = self._live()
        return self._call(kept.child, "predicting", _method, kept, "predict", arguments)

    def make_state(self) -> _State:
        kept = self._live()
        number = self._call(kept.child, "making states", _keep, _method, kept, "make_state")
        return _State(self._device, self._subject, kept, _Kept(kept.child, number))

    def _live(self) -> _Kept:
        if self._kept.child.is_dead:
            self._kept = self._load()
        return self._kept

    def _call(self, child: _Child, doing: str, function: Callable[..., T], *arguments: Any) -> T:
        return self._device.call(child, self._subject, doing, function, *arguments)


class _State:
    def __init__(self, device: Device, subject: str, model: _Kept, state: _Kept) -> None:
        self._device, self._subject, self._model, self._state = device, subject, model, state

    def predict(self, arguments: dict[str, Any]) -> dict[str, Any]:
        found: dict[str, Any] = self._call(
            "predicting", _method, self._model, "predict", arguments, self._state
        )
        return found

    def read_state(self, name: str) -> Any:
        return self._call("reading a state", _method, self._state, "read_state", name)

    def write_state(self, name: str, value: Array) -> None:
        self._call("writing a state", _write_state, self._state, name, value)

    def _call(self, doing: str, function: Callable[..., Any], *arguments: Any) -> Any:
        if (child := self._state.child).is_dead:
            raise ExecutionError(
                f"{self._subject}: its states were lost when Core ML's process ended; start the "
                "sequence again."
            )
        return self._device.call(child, self._subject, doing, function, *arguments)


def _load(path: str, units: str, function: str | None) -> Any:
    ct = coremltools()
    return ct.models.CompiledMLModel(path, ct.ComputeUnit[units], function)


def _method(of: Any, name: str, *arguments: Any) -> Any:
    return getattr(of, name)(*arguments)


def _write_state(state: Any, name: str, value: Array) -> None:
    state.write_state(name, np.array(value))  # The mapped one changes with the next request.


class _Reference(int):
    """The number of an object that the child keeps."""


class _Kept:
    """An object in a child, which keeps it as long as this one lives."""

    def __init__(self, child: _Child, number: int) -> None:
        self.child, self.reference = child, _Reference(number)
        weakref.finalize(self, child.release, self.reference).atexit = False


class _Child:
    """The parent's side of one child process; its loads are counted by who asks."""

    def __init__(self, timeout: float, installer: Sequence[str]) -> None:
        self.loads = 0
        self._timeout = timeout
        self._lock = threading.Lock()
        self._released: list[_Reference] = []
        self._dead = False
        ours, theirs = Pipe()
        with _nameless() as requests, _nameless() as answers, theirs:
            fds = (theirs.fileno(), requests.fileno(), answers.fileno())
            self._process = subprocess.Popen(
                [sys.executable, "-c", _COMMAND, *map(str, fds), *sys.path], pass_fds=fds,
                stdin=subprocess.DEVNULL, stdout=2,
                start_new_session=True,  # Ctrl-C is the parent's, which ends the child.
            )  # fmt: skip
            self._channel = _Channel(ours, os.dup(fds[1]), os.dup(fds[2]), copies=True)
        weakref.finalize(self, _end, self._process, self._channel)
        try:
            self._exchange((timeout, tuple(installer)), _START)
        except (TimeoutError, EOFError) as error:
            raise BackendError(
                f"The process for Core ML did not start ({error or f'{_START:g} seconds'}); see "
                "whether python -c 'import coremltools' works."
            ) from None

    @property
    def is_dead(self) -> bool:
        return self._dead or self._process.poll() is not None

    def release(self, reference: _Reference) -> None:
        self._released.append(reference)

    def call(self, function: Callable[..., T], arguments: Sequence[Any]) -> T:
        references = [a.reference if isinstance(a, _Kept) else a for a in arguments]
        with self._lock:
            released, self._released = self._released, []
            result: T = self._exchange((function, references, released), self._timeout)
        return result

    def _exchange(self, request: Any, timeout: float) -> Any:
        try:
            self._channel.send(request)
            if not self._channel.connection.poll(timeout):
                raise TimeoutError
            failed, value = self._channel.receive()
        except (EOFError, ConnectionError):
            self._dead = True
            raise EOFError(_ending(_waited(self._process))) from None
        except BaseException:  # Ctrl-C too: a child in the middle of a call is of no use.
            self._dead = True
            _end(self._process, self._channel)
            raise
        if failed:
            raise value
        return value


def _nameless() -> IO[bytes]:
    if sys.platform == "linux":
        return os.fdopen(os.memfd_create("pytest-ane"), "r+b")
    return tempfile.TemporaryFile()


def _end(process: subprocess.Popen[bytes], channel: _Channel) -> None:
    channel.close()
    process.kill()
    _waited(process)


def _waited(process: subprocess.Popen[bytes]) -> int | None:
    """The code of an ending process; None where a call of the kernel keeps even SIGKILL from it."""
    with suppress(subprocess.TimeoutExpired):
        return process.wait(_LAST_WAIT)
    return None


def _ending(code: int | None) -> str:
    if code is None:
        return "it does not end"
    return signal.Signals(-code).name if code < 0 else f"exit code {code}"


class _Channel:
    """Objects over a pipe, large arrays in mapped files; received ones are `copies`, or change."""

    def __init__(
        self, connection: Connection, sending: int, receiving: int, *, copies: bool
    ) -> None:
        self.connection, self._fds, self._copies = connection, (sending, receiving), copies
        self._maps: list[mmap.mmap | None] = [None, None]

    def send(self, message: Any) -> None:
        buffers: list[memoryview] = []

        def in_band(buffer: pickle.PickleBuffer) -> bool:
            if buffer.raw().nbytes >= _LARGE:
                buffers.append(buffer.raw())
                return False
            return True

        data = pickle.dumps(message, 5, buffer_callback=in_band)
        sizes = [buffer.nbytes for buffer in buffers]
        target = self._mapped(0, sizes)
        for offset, buffer in zip(_offsets(sizes), buffers, strict=False):
            target[offset : offset + buffer.nbytes] = buffer
        self.connection.send(sizes)
        self.connection.send_bytes(data)

    def receive(self) -> Any:
        sizes = self.connection.recv()
        data = self.connection.recv_bytes()
        whole = self._mapped(1, sizes)
        parts: list[Any] = [whole[o : o + n] for o, n in zip(_offsets(sizes), sizes, strict=False)]
        # numpy's memory has huge pages: a bytearray's takes three times as long to fill.
        buffers = [np.array(p, np.uint8) for p in parts] if self._copies else parts
        return pickle.loads(data, buffers=buffers)

    def close(self) -> None:
        self.connection.close()
        for fd in self._fds:
            os.close(fd)
        self._fds, self._maps = (), [None, None]  # type: ignore[assignment]

    def _mapped(self, index: int, sizes: Sequence[int]) -> memoryview:
        """A mapping that has room; views of an earlier one stay valid."""
        *_, size = _offsets(sizes)
        if not size:
            return memoryview(b"")
        current = self._maps[index]
        if current is None or len(current) < size:
            fd = self._fds[index]
            if os.fstat(fd).st_size < size:
                os.ftruncate(fd, size)
            current = self._maps[index] = mmap.mmap(fd, os.fstat(fd).st_size)
        return memoryview(current)


def _offsets(sizes: Sequence[int]) -> list[int]:
    return [*accumulate((-(-size // _ALIGNED) * _ALIGNED for size in sizes), initial=0)]


_numbers = count()
_objects: dict[_Reference, Any] = {}
"""In the child."""


def _keep(function: Callable[..., Any], *arguments: Any) -> int:
    number = next(_numbers)
    _objects[_Reference(number)] = function(*arguments)
    return number


def serve(connection: int, requests: int, answers: int) -> None:
    """The child: answer until the parent is gone. An alarm, without the GIL, ends a late call."""
    channel = _Channel(Connection(connection), answers, requests, copies=False)
    sys.modules.update(dict.fromkeys(_NOT_NEEDED))  # type: ignore[arg-type]
    try:
        timeout, installer = channel.receive()
        channel.send(_outcome(_start, installer))
        while True:
            _answer(channel, timeout)
    except (EOFError, ConnectionError):
        os._exit(0)  # Core ML's own clean-up may hang.


def _answer(channel: _Channel, timeout: float) -> None:
    channel.connection.poll(None)
    signal.setitimer(signal.ITIMER_REAL, timeout + _GRACE)
    function, arguments, released = channel.receive()
    for reference in released:
        _objects.pop(reference, None)
    objects = [_objects[a] if isinstance(a, _Reference) else a for a in arguments]
    outcome = _outcome(function, *objects)
    signal.setitimer(signal.ITIMER_REAL, 0)
    try:
        channel.send(outcome)
    except (TypeError, AttributeError, pickle.PicklingError) as error:
        channel.send((True, RuntimeError(f"its answer cannot cross processes ({error})")))


def _start(installer: Sequence[str]) -> None:
    if installer:
        module, _, name = installer[0].partition(":")
        getattr(importlib.import_module(module), name)(*installer[1:])
    coremltools()


def _outcome(function: Callable[..., Any], *arguments: Any) -> tuple[bool, Any]:
    try:
        return False, function(*arguments)
    except Exception as error:
        return True, _crossing(error)


def _crossing(error: Exception) -> Exception:
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:
        kind = ExecutionError if isinstance(error, AneError) else RuntimeError
        return kind(str(error))
    return error
