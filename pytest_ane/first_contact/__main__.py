"""The child: `python -m pytest_ane.first_contact FOLDER SECONDS` runs the steps without facts."""

from __future__ import annotations

import os
import signal
import sys
import threading
from contextlib import ExitStack
from pathlib import Path

from pytest_ane.first_contact.results import Results
from pytest_ane.first_contact.steps import STEPS, Setup, load_again_and_again

_GRACE = 5.0


def main(folder: str, seconds: float) -> None:
    """Run the steps that are left, in order; facts are written after each.

    The parent ends a step that takes too long. Where the parent is gone and a call of Core ML holds
    the GIL for ever, an alarm does: its default action ends the process, which needs no GIL.
    """
    threading.Thread(target=_end_with_parent, daemon=True).start()
    results = Results(Path(folder))
    setup = results.setup()
    with replayed(setup.replay):
        for name in results.left():
            results.begin(name)
            signal.setitimer(signal.ITIMER_REAL, seconds + _GRACE)
            step = STEPS[name]
            if step.needs_ane and setup.no_ane:
                results.write(name, {"left_out": f"This is {setup.no_ane}, without an ANE to ask."})
                continue
            try:
                results.write(name, step.measure(setup))
            except Exception as error:
                results.write(name, {"failed": f"{type(error).__name__}: {error}"[:4000]})


def replayed(folder: str) -> ExitStack:
    """With the answers of a script, if there is one."""
    from pytest_ane.testing import Replayer

    stack = ExitStack()
    if folder:
        stack.enter_context(Replayer(folder))
    return stack


def _end_with_parent() -> None:
    """End this process and those it started when its parent is gone: its end of stdin is closed.

    A run of pytest that outlived it would write into the folder of the run that goes on.
    """
    sys.stdin.buffer.read()
    if os.getpgrp() == os.getpid():
        os.killpg(os.getpgrp(), signal.SIGKILL)
    os._exit(1)


if __name__ == "__main__":
    if sys.argv[1] == "--load":
        with replayed(sys.argv[3]):
            load_again_and_again(Setup(Path(sys.argv[2]), replay=sys.argv[3]))
    else:
        main(sys.argv[1], float(sys.argv[2]))
