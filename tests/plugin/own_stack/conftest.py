"""The example's packages, written once, and a copy of the example for each test."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from filelock import FileLock

from tests.plugin.own_stack.faults import EXAMPLE


@pytest.fixture(scope="session")
def packages(shared_path: Path) -> Path:
    """What the example's script writes, as a user runs it."""
    folder = shared_path / "own_stack"
    with FileLock(f"{folder}.lock"):
        if not (folder / "decoder.mlpackage").exists():
            subprocess.run([sys.executable, EXAMPLE / "own_stack.py", folder], check=True)
    return folder


@pytest.fixture
def stack(packages: Path, tmp_path: Path) -> Path:
    """A copy of the example to break."""
    shutil.copytree(packages, tmp_path / "packages")
    shutil.copy(EXAMPLE / "shards.toml", tmp_path)
    return tmp_path
