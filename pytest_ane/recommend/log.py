"""The log: every number that was measured, one JSON object a line, from which a search resumes."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

from pytest_ane.core.digests import key_digest
from pytest_ane.core.errors import CacheError


class Log:
    """Measurements by key, kept in a file as they come.

    A last line that a killed process cut short is skipped, and so is whatever else is no entry.

    Args:
        file: made if need be, its folder too.
        context: what all measurements depend on; entries of another context are left alone.
    """

    def __init__(self, file: Path, context: object) -> None:
        self.file = file
        self._context = key_digest(context)[:16]
        self._known: dict[str, dict[str, Any]] = {}
        try:
            file.parent.mkdir(parents=True, exist_ok=True)
            text = file.read_bytes() if file.exists() else b""
        except OSError as error:
            raise CacheError(
                f"The log {file} cannot be read: {error.strerror}; choose another with --log."
            ) from None
        for line in text.splitlines():
            try:
                entry = json.loads(line)
                if entry["context"] == self._context:
                    self._known[entry["key"]] = dict(entry["found"])
            except (ValueError, TypeError, KeyError, RecursionError):
                continue

    def __len__(self) -> int:
        return len(self._known)

    def get(self, kind: str, what: object) -> dict[str, Any] | None:
        """What was measured, or None."""
        return self._known.get(_key(kind, what))

    def put(self, kind: str, what: object, found: dict[str, Any]) -> None:
        """Keep a measurement, with what it is of, for people."""
        key, found = _key(kind, what), _finite(found)
        self._known[key] = found
        entry = {"context": self._context, "kind": kind, "key": key, "of": what, "found": found}
        try:
            with self.file.open("ab", buffering=0) as file:
                # The break comes first: the line before may have been cut short.
                file.write(f"\n{json.dumps(entry)}".encode())
        except OSError as error:
            raise CacheError(
                f"The log {self.file} cannot be written: {error.strerror}; choose another with "
                "--log."
            ) from None


def _finite(value: Any) -> Any:
    """JSON has no NaN and no infinity: null stands for both."""
    if isinstance(value, dict):
        return {key: _finite(one) for key, one in value.items()}
    if isinstance(value, list):
        return [_finite(one) for one in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _key(kind: str, what: object) -> str:
    return key_digest([kind, what])[:16]
