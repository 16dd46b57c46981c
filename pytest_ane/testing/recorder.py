"""Recording what Core ML answers, for a `Replayer` to answer the same elsewhere."""

from __future__ import annotations

import os
import subprocess
import sys
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from filelock import FileLock

from pytest_ane.mlprogram.errors import RecordingError
from pytest_ane.testing.script import LOCK, NAME, Mac, Script

if TYPE_CHECKING:
    from pytest_ane.testing.recording import AnswerLog


class Recorder:
    """While it is entered, every answer of Core ML is kept; on leaving, a recording is complete.

    Args:
        folder: where `script.json`, `plans/` and `values/` are written; made if need be.

    Raises:
        RecordingError: on entering, there is no native module to record, or the folder holds a
            recording already.
    """

    def __init__(self, folder: Path | str) -> None:
        self.folder = Path(folder)
        self._exit = ExitStack()
        self._log: AnswerLog | None = None
        self._cores = 0

    @property
    def skipped(self) -> tuple[str, ...]:
        """What could not be kept, a sentence each."""
        return tuple(self._log.skipped) if self._log else ()

    def __enter__(self) -> Recorder:
        from pytest_ane.make.coremltools_quiet import import_coremltools
        from pytest_ane.predict.hook import NATIVE, in_place
        from pytest_ane.testing.recording import AnswerLog, recording_module

        if "PYTEST_XDIST_WORKER" in os.environ:
            raise RecordingError(
                "workers of xdist are not recorded: processes that share one device disturb each "
                "other; leave out -n."
            )
        import_coremltools()
        inner = sys.modules.get(NATIVE)
        if inner is None:
            raise RecordingError("there is no Core ML on this machine; record on a Mac.")
        if (self.folder / NAME).exists():
            raise RecordingError(
                f"{self.folder}: holds a recording; delete it, or record into another folder."
            )
        self.folder.mkdir(parents=True, exist_ok=True)
        self._log = AnswerLog(self.folder)
        self._cores = _cores(inner)
        self._exit.enter_context(in_place(recording_module(inner, self._log), None))
        return self

    def __exit__(self, *error: Any) -> None:
        self._exit.close()
        assert self._log is not None
        script = Script(
            _machine(self._cores),
            failures=tuple(self._log.failures),
            compute=not self._log.predicted,
        )
        with FileLock(self.folder / LOCK):
            if (self.folder / NAME).exists():  # Of another process, which began meanwhile.
                other = Script.load(self.folder)
                script = replace(
                    script,
                    failures=other.failures + script.failures,
                    compute=other.compute and script.compute,
                )
            script.save(self.folder)


def _cores(native: ModuleType) -> int:
    """Cores of the Neural Engine; 0 without one."""
    try:
        devices = native._MLModelProxy.get_all_compute_devices()
        return sum(getattr(device, "total_core_count", 0) for device in devices)
    except RuntimeError:  # Before macOS 14.
        return 0


def _machine(cores: int) -> Mac:
    return Mac(
        cores=cores,
        chip=_output_of("sysctl", "-n", "machdep.cpu.brand_string"),
        os=_output_of("sw_vers", "-productVersion"),
        build=_output_of("sw_vers", "-buildVersion"),
        # `xcrun` opens a window where there are no tools, and `xcode-select` does not.
        compiler=_output_of("xcrun", "coremlcompiler", "version")
        if _output_of("xcode-select", "-p")
        else "",
        model=_output_of("sysctl", "-n", "hw.model"),
        virtual=_output_of("sysctl", "-n", "kern.hv_vmm_present") == "1",
        translated=_output_of("sysctl", "-n", "sysctl.proc_translated") == "1",
    )


def _output_of(*command: str) -> str:
    """What a tool prints; empty where there is none, or where it fails."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""
