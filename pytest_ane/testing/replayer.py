"""A Mac that is not there: Core ML's answers from a script."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from pytest_ane.testing.script import Script
from pytest_ane.testing.tools import write_tools


class Replayer:
    """While it is entered, coremltools and the machine's tools answer as a script says.

    coremltools' own classes run unchanged; `sysctl`, `sw_vers` and `xcrun` come first on PATH.
    Everything is as before afterwards. Counts of failures start anew each time it is entered.

    Args:
        script: a script, or a folder with `script.json` and perhaps recorded answers.

    Raises:
        RecordingError: the folder cannot be read.
    """

    def __init__(self, script: Script | Path | str) -> None:
        self.folder = None if isinstance(script, Script) else Path(script)
        self.script = script if isinstance(script, Script) else Script.load(script)
        self._exit = ExitStack()

    def __enter__(self) -> Replayer:
        with ExitStack() as stack:
            self._enter(stack)
            self._exit = stack.pop_all()
        return self

    def _enter(self, stack: ExitStack) -> None:
        # Not on top: a script is a light thing, and coremltools takes seconds.
        from pytest_ane.predict.hook import MACOS
        from pytest_ane.testing.native import Answers, native
        from pytest_ane.testing.place import in_place
        from pytest_ane.testing.recorded import Recording

        folder = Path(stack.enter_context(TemporaryDirectory(prefix="pytest-ane-")))
        write_tools(self.script, folder)
        recording = Recording(self.folder) if self.folder else None
        version = tuple(int(part) for part in self.script.machine.os.split(".") if part.isdigit())
        stack.enter_context(
            in_place(native(Answers(self.script, folder, recording)), version or MACOS)
        )
        stack.enter_context(_first_on_path(folder))

    def __exit__(self, *error: Any) -> None:
        self._exit.close()


@contextmanager
def _first_on_path(folder: Path) -> Iterator[None]:
    before = os.environ.get("PATH")
    os.environ["PATH"] = os.pathsep.join(filter(None, (str(folder), before)))
    try:
        yield
    finally:
        if before is None:
            del os.environ["PATH"]
        else:
            os.environ["PATH"] = before
