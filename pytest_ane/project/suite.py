"""Where the gate suite lies."""

from __future__ import annotations

from functools import cache
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType

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


@cache
def files() -> tuple[Path, ...]:
    """The shipped suite's files of gates."""
    return tuple(sorted(shipped().glob("test_*.py")))


def in_use(root: Path, name: str) -> Path:
    """A file of gates: the project's own form of it if there is one, else ours."""
    file = root / FOLDER / name
    return file if file.is_file() else shipped() / name


def load(file: Path) -> ModuleType:
    """A file of gates as a module, whatever else is called `gates` in this process."""
    spec = spec_from_file_location(f"pytest_ane_suite_{file.stem}", file)
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
