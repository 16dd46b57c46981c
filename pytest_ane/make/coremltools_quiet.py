"""coremltools without its noise: progress bars, missing native modules, version remarks."""

from __future__ import annotations

import gc
import io
import logging
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr
from importlib import import_module
from types import ModuleType
from typing import Any

_TRAINING = "coremltools.optimize.torch"


def import_coremltools() -> Any:
    """`coremltools`, its remarks at import (eight of them off macOS) kept off the screen.

    The collector leaves out what it is made of, a third of a second each time.
    """
    first = "coremltools.optimize.coreml" not in sys.modules
    with importing():
        import coremltools
        import coremltools.optimize.coreml
    if first:
        gc.freeze()
    return coremltools


@contextmanager
def importing() -> Iterator[None]:
    """While coremltools is imported: no remarks, and nothing that it need not have.

    It imports transformers and scikit-learn to see whether they are there, which takes two seconds;
    what compresses models while they are trained is imported when it is asked for.
    """
    hidden = {"transformers", "sklearn"} - sys.modules.keys()
    later = set() if "coremltools" in sys.modules else {_TRAINING}
    with converter_notes():
        sys.modules.update(dict.fromkeys(hidden))  # type: ignore[arg-type]
        sys.modules.update((name, ModuleType(name)) for name in later)
        try:
            yield
        finally:
            for name in hidden | later:
                del sys.modules[name]
            optimize = sys.modules.get("coremltools.optimize")
            # It has no training part where torch is absent.
            if later and optimize and vars(optimize).pop("torch", None):
                vars(optimize)["__getattr__"] = _asked_of_optimize


def _asked_of_optimize(name: str) -> Any:
    """`coremltools.optimize.torch`, which Python asks for here when it is not imported yet."""
    if name != "torch":
        raise AttributeError(f"module 'coremltools.optimize' has no attribute {name!r}")
    return import_module(_TRAINING)


@contextmanager
def converter_notes() -> Iterator[list[str]]:
    """Collect coremltools' log lines; keep them, its progress bars and its warnings off stderr."""
    logger, lines = logging.getLogger("coremltools"), list[str]()
    collector = logging.Handler(logging.WARNING)  # With warnings it declines a weight.
    collector.emit = lambda record: lines.append(record.getMessage())  # type: ignore[method-assign]
    handlers, propagate = logger.handlers[:], logger.propagate
    logger.handlers, logger.propagate = [collector], False
    try:
        with redirect_stderr(io.StringIO()), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield lines
    finally:
        logger.handlers, logger.propagate = handlers, propagate
