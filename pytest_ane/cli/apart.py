"""The process that judges: started in an empty folder, with an environment made of nothing.

Libraries read configuration from the folder they are started in, from the home folder and from
variables; numba's `.numba_config.yaml` names a folder of pickles. Of a pull request nothing but
what an argument names may reach the process that judges it.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from pytest_ane.cli.output import complain

JUDGES = {"verify", "verify-run"}
"""Actions of `evidence` that judge what others give."""
_KEPT = ("COLUMNS", "FORCE_COLOR", "LANG", "LC_ALL", "NO_COLOR", "TERM", "TMPDIR", "TZ")
"""Variables that say how to print, and where temporary files are."""


def is_judge(words: Sequence[str]) -> bool:
    """Whether a command line judges what others give, and does not only print its help."""
    return words[:1] == ["evidence"] and bool(JUDGES & {*words}) and not {"-h", "--help"} & {*words}


def judge(words: Sequence[str]) -> int:
    """Run a command line in a process of its own; its exit code."""
    if "verify-run" in words and not sys.flags.isolated:
        complain(
            "verify-run would import what lies in the pull request; run it isolated: "
            "python -I -m pytest_ane.cli evidence verify-run ..."
        )
        return 1
    with TemporaryDirectory(prefix="pytest-ane-judge-") as folder:
        command = [sys.executable, "-I", "-m", __name__, str(Path.cwd()), *words]
        process = subprocess.Popen(command, cwd=folder, env=environment(Path(folder)))
        try:
            return process.wait()
        finally:
            process.terminate()
            process.wait()


def environment(home: Path) -> dict[str, str]:
    """Variables of a judge: none that a library takes for a place of code or of configuration."""
    git = shutil.which("git")
    folders = [str(Path(git).parent)] if git else []
    kept = {name: os.environ[name] for name in _KEPT if name in os.environ}
    return kept | {
        "HOME": str(home),
        "PATH": os.pathsep.join([*folders, *os.defpath.split(os.pathsep)]),
        "GIT_CONFIG_NOSYSTEM": "1",
        "GIT_OPTIONAL_LOCKS": "0",
        "GIT_TERMINAL_PROMPT": "0",
    }


def placed(options: argparse.Namespace, here: Path) -> argparse.Namespace:
    """Options whose paths are absolute: those of a person who called from `here`."""
    values: dict[str, Any] = vars(options)
    values["manifest"] = options.manifest or Path("shards.toml")
    for name, value in values.items():
        if isinstance(value, Path):
            values[name] = here / value
    options.what = [str(here / each) for each in options.what]
    if options.policy_from and (here / options.policy_from).is_dir():
        options.policy_from = str(here / options.policy_from)
    return options


if __name__ == "__main__":
    from pytest_ane.cli import main

    sys.exit(main(sys.argv[2:], Path(sys.argv[1])))
