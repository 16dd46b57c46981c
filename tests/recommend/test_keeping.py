"""What is loaded once, and what is let go."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pytest_ane.recommend.keeping import Keeping

A, B = Path("a"), Path("b")


class Backend:
    name, on_device = "toy", False

    def __init__(self) -> None:
        self.loaded: list[Path] = []

    def load(self, artifact: Path) -> Any:
        self.loaded.append(artifact)
        return object()

    def provenance(self) -> dict[str, str]:
        return {"backend": self.name}


def test_a_runner_is_loaded_once_until_it_is_forgotten() -> None:
    backend = Backend()
    keeping = Keeping(backend)
    a, b = keeping.load(A), keeping.load(B)
    assert (keeping.load(A), keeping.fresh(B)) == (a, b)
    keeping.forget(keep={A})
    assert keeping.load(A) is a
    assert keeping.load(B) is not b
    keeping.forget(B)
    keeping.fresh(B)
    assert keeping.load(A) is a
    assert backend.loaded == [A, B, B, B]
    assert keeping.provenance() == {"backend": "toy"}
