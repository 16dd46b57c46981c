"""Pictures of whole models for pages and write-ups, drawn by altair; the extra `report` has it."""

from __future__ import annotations

from importlib.util import find_spec

from pytest_ane.mlprogram.errors import ReportError


def _require() -> None:
    missing = [name for name in ("altair", "vl_convert") if find_spec(name) is None]
    if missing:
        raise ReportError(
            f"Charts need {' and '.join(missing)}; run: pip install 'pytest-ane[report]'"
        )


# Whoever imports a module of this package gets the sentence instead of an ImportError.
_require()
