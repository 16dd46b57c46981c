"""Manifests written in a test's own folder, which is also the current one."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from pytest_ane.manifest import Manifest, load
from pytest_ane.mlprogram.errors import ManifestError

Read = Callable[[str], Manifest]
Complaints = Callable[[str], list[str]]


@pytest.fixture
def read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Read:
    """Loads a text as `shards.toml`."""
    monkeypatch.chdir(tmp_path)

    def loaded(text: str) -> Manifest:
        path = Path("shards.toml")
        path.write_text(text, encoding="utf-8")
        return load(path)

    return loaded


@pytest.fixture
def complaints(read: Read) -> Complaints:
    """The lines of the error that a text gives."""

    def lines(text: str) -> list[str]:
        with pytest.raises(ManifestError) as caught:
            read(text)
        return str(caught.value).splitlines()

    return lines
