"""`python -m MODULE ...` in processes forked from one that has imported what a run imports.

The imports take five seconds of a processor, which is most of what a gate of one shard does;
pytest's plugins take another, which is ten times what pytest itself does.
"""

from __future__ import annotations

import atexit
import json
import os
import runpy
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Sequence
from pathlib import Path

MANIFEST = """
[models.any]
family = "llama"
source = { path = "any.gguf" }
shards = "L00"
prompts = [{ name = "any", text = "any" }]
shard.L00.policy.fidelity.min-cosine = 0.9
"""
FORKS = sys.platform.startswith("linux")
"""macOS's frameworks do not survive a fork."""


class Forge:
    """The process that is forked, started when it is first needed; or whole processes."""

    def __init__(self, *, forks: bool = FORKS) -> None:
        self._forks = forks
        self._server: subprocess.Popen[str] | None = None

    def run(self, arguments: Sequence[str], cwd: Path) -> subprocess.CompletedProcess[str]:
        """`python -m` with these arguments, in this folder; stdout holds stderr, too."""
        if not self._forks:
            return subprocess.run(
                [sys.executable, "-m", *arguments],
                cwd=cwd,
                env={**os.environ, "COLUMNS": "80"},
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
    from contextlib import redirect_stdout
    from importlib import import_module

    logging.disable()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import pytest
        from numba.core.registry import cpu_target

        import pytest_ane
        from pytest_ane.make.coremltools_quiet import import_coremltools

        import_coremltools()

        for module in pkgutil.walk_packages(pytest_ane.__path__, "pytest_ane."):
            if not module.name.endswith("__main__"):
                import_module(module.name)
        cpu_target.target_context.refresh()
        with tempfile.TemporaryDirectory() as folder, Path(os.devnull).open("w") as null:
            # A run, for pytest imports its plugins in a way of its own: nothing else would do.
            manifest = Path(folder, "shards.toml")
            manifest.write_text(MANIFEST)
            with redirect_stdout(null):
                pytest.main(
                    [f"--rootdir={folder}", f"--ane-manifest={manifest}", "--ane-shards=L00",
                     "-m", "gate", "--co", "-p", "no:cacheprovider", folder]
                )  # fmt: skip
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
    code: object = 0
    try:
        runpy.run_module(arguments[0], run_name="__main__", alter_sys=True)
    except SystemExit as end:
        code = end.code or 0
    except BaseException:
        traceback.print_exc()
        code = 1
    # Python's own end would touch, and so copy, all that the imports have made.
    atexit._run_exitfuncs()
    if not isinstance(code, int):
        print(code, file=sys.stderr)
        code = 1
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


if __name__ == "__main__":
    _serve()
