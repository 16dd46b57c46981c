"""Packages converted by coremltools, once for all tests: an oracle that shares no code with us."""

from __future__ import annotations

import contextlib
import io
import logging
import warnings
from pathlib import Path
from typing import Any

SIZE, LONGEST = 64, 8


@contextlib.contextmanager
def quiet() -> Any:
    """Silence: coremltools logs, warns and draws bars."""
    logging.disable(logging.CRITICAL)
    silent = io.StringIO()
    try:
        with warnings.catch_warnings(), contextlib.redirect_stderr(silent):
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(logging.NOTSET)


def save(model: Any, folder: Path, name: str) -> Path:
    """The model as a package."""
    path = folder / f"{name}.mlpackage"
    model.save(str(path))
    return path
