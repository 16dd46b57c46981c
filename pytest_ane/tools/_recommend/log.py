"""The log: every number that was measured, one JSON object a line, from which a search resumes."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pytest_ane.mlprogram.digests import key_digest
from pytest_ane.mlprogram.errors import CacheError
from pytest_ane.mlprogram.strict_json import strict


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
        self._entries: dict[str, dict[str, Any]] = {}
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
                    self._entries[entry["key"]] = dict(entry["found"])
            except (ValueError, TypeError, KeyError, RecursionError):
                continue

    def __len__(self) -> int:
        return len(self._entries)

    def get(self, kind: str, subject: object) -> dict[str, Any] | None:
        """A measurement by its kind and subject, or None."""
        return self._entries.get(_key(kind, subject))

    def kept(
        self, kind: str, subject: object, measure: Callable[[], dict[str, Any]]
    ) -> dict[str, Any]:
        """A measurement by its kind and subject, made and kept if there is none."""
        if (entry := self.get(kind, subject)) is not None:
            return entry
        return self.put(kind, subject, measure())

    def put(self, kind: str, subject: object, measured: dict[str, Any]) -> dict[str, Any]:
        """Keep a measurement, with its subject for people; returns it as the log has it.

        Raises:
            CacheError: the log cannot be written.
        """
        key, measured = _key(kind, subject), strict(measured)
        self._entries[key] = measured
        entry = {"context": self._context, "kind": kind, "key": key}
        line = json.dumps(entry | {"of": subject, "found": measured})
        try:
            with self.file.open("ab", buffering=0) as file:
                # The break comes first: the line before may have been cut short.
                file.write(f"\n{line}".encode())
        except OSError as error:
            raise CacheError(
                f"The log {self.file} cannot be written: {error.strerror}; choose another with "
                "--log."
            ) from None
        return measured


def _key(kind: str, subject: object) -> str:
    return key_digest([kind, subject])[:16]
