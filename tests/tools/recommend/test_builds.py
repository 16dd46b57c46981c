"""Runners that are loaded once, and dropped."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pytest_ane.tools._recommend import LoadedBackend

A, B = Path("a"), Path("b")


class Backend:
    name, on_device = "toy", False

    def __init__(self) -> None:
        self.loaded: list[Path] = []

    def load(self, artifact: Path, function: str | None = None) -> Any:
        self.loaded.append(artifact)
        return object()

    def provenance(self) -> dict[str, str]:
        return {"backend": self.name}


def test_the_runners_that_are_kept_are_loaded_once() -> None:
    backend = Backend()
    loaded = LoadedBackend(backend)
    loaded.keep((A, B))
    a, b = loaded.load(A), loaded.load(B)
    assert (loaded.load(A), loaded.load(B)) == (a, b)
    loaded.keep((A,))
    assert loaded.load(A) is a
    assert loaded.load(B) is not b
    loaded.load(B)
    assert loaded.load(A) is a
    assert backend.loaded == [A, B, B, B]
    assert loaded.provenance() == {"backend": "toy"}
