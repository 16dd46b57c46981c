"""States whose whole history has a digest, so that a prediction with one can be known again."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from pytest_ane.core.digests import key_digest
from pytest_ane.testing.recorded import described


class State:
    """A state's native side, and the digest of all it went through.

    Args:
        inner: the native side of the one who answers.
        read: gives a value, from its digest and how to ask `inner` for it.

    Attributes:
        digest: of its predictions and of what was written to it.
        played: whether a recorded prediction went through it, of which `inner` knows nothing.
    """

    def __init__(self, inner: Any, read: Callable[[State, str, Callable[[], Any]], Any]) -> None:
        self.inner, self._read = inner, read
        self.digest, self.played = "", False

    def then(self, event: object) -> None:
        """It went through something more."""
        self.digest = key_digest([self.digest, event])

    def read_state(self, name: str) -> Any:
        """A copy of a state's value."""
        key = key_digest([self.digest, name])
        return self._read(self, key, lambda: self.inner.read_state(name))

    def write_state(self, name: str, value: Any) -> None:
        """Another value for a state."""
        self.inner.write_state(name, value)
        self.then(described({name: np.asarray(value)}))
