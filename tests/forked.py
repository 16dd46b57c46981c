"""`python -m MODULE ...` in processes forked from one that has imported pytest_ane and coremltools.

The imports take five seconds of a processor, which is most of what a gate of one shard does.
"""

from __future__ import annotations

import json
import os
import runpy
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

FORKS = sys.platform.startswith("linux")
"""macOS's frameworks do not survive a fork."""


class Forge:
    """The process that is forked, started when it is first needed."""

    def __init__(self) -> None:
        self._server: subprocess.Popen[str] | None = None

    def run(self, arguments: Sequence[str], cwd: Path) -> subprocess.CompletedProcess[str]:
        """`python -m` with these arguments, in this folder; stdout holds stderr, too."""
        if not FORKS:
            return subprocess.run(
                [sys.executable, "-m", *arguments],
                cwd=cwd,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                check=False,
            )
        if self._server is None:
            self._server = subprocess.Popen(
                [sys.executable, __file__], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
            )
        assert self._server.stdin is not None
        assert self._server.stdout is not None
        with tempfile.NamedTemporaryFile() as output:
            asks = {"arguments": arguments, "cwd": str(cwd), "output": output.name}
            print(json.dumps(asks), file=self._server.stdin, flush=True)
            code = int(self._server.stdout.readline())
            text = Path(output.name).read_text(encoding="utf-8")
        return subprocess.CompletedProcess(arguments, code, text)

    def close(self) -> None:
        """End the process."""
        if self._server is not None:
            self._server.communicate()


def _serve() -> None:
    """Fork for each line of stdin, and answer with the exit code."""
    import gc
    import logging
    import pkgutil
    import warnings
    from importlib import import_module

    logging.disable()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import coremltools
        import coremltools.optimize.coreml  # noqa: F401

        import pytest_ane

        for module in pkgutil.walk_packages(pytest_ane.__path__, "pytest_ane."):
            if not module.name.endswith("__main__"):
                import_module(module.name)
    logging.disable(logging.NOTSET)
    gc.freeze()
    for line in sys.stdin:
        child = os.fork()
        if not child:
            _be(**json.loads(line))
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)


def _be(arguments: list[str], cwd: str, output: str) -> None:
    """Become `python -m ARGUMENTS` in this folder."""
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(os.open(output, os.O_WRONLY), 1)
    os.dup2(1, 2)
    os.chdir(cwd)
    os.environ["COLUMNS"] = "80"
    sys.argv, sys.path[0] = arguments, cwd
    runpy.run_module(arguments[0], run_name="__main__", alter_sys=True)
    sys.exit()


if __name__ == "__main__":
    _serve()
