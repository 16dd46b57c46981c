"""Where the gate suite lies."""

from __future__ import annotations

from pathlib import Path

FOLDER = "gates"
_MARK = "test_fidelity.py"


def shipped() -> Path:
    """The gate suite of this installation: in the wheel, or beside the package in a checkout."""
    package = Path(__file__).resolve().parents[1]
    inside = package / "suite"
    return inside if (inside / _MARK).is_file() else package.parent / FOLDER


def own(root: Path) -> Path | None:
    """A project's own copy of the gates, below its root folder."""
    folder = root / FOLDER
    return folder if (folder / _MARK).is_file() else None


def in_use(root: Path) -> Path:
    """The project's own copy of the gates if it has one, else ours."""
    return own(root) or shipped()
