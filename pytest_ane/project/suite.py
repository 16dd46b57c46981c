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
    """A project's own copy of the gates, or of some of them, below its root folder."""
    folder = root / FOLDER
    return folder if any((folder / file.name).is_file() for file in files()) else None


def files() -> list[Path]:
    """The shipped suite's files of gates."""
    return sorted(shipped().glob("test_*.py"))


def in_use(root: Path, name: str) -> Path:
    """A file of gates: the project's own form of it if there is one, else ours."""
    file = root / FOLDER / name
    return file if file.is_file() else shipped() / name
