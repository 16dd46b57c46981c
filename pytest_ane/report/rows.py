"""One verdict as people read it, and the order in which they read them."""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

_ORDER = {"error": 0, "failed": 1, "unproven": 2, "not run": 3, "warned": 4, "passed": 5}


class StoredVerdict(Mapping[str, Any]):
    """A verdict's JSON data, as `pack` made them until they are read: a tenth of the memory."""

    def __init__(self, packed: bytes) -> None:
        self._packed = packed

    @staticmethod
    def pack(data: Mapping[str, Any]) -> bytes:
        """Data as of `report.verdict.to_json`, as they go from process to process."""
        return zlib.compress(json.dumps(data).encode())

    def __getitem__(self, name: str) -> Any:
        return _unpacked(self._packed)[name]

    def __iter__(self) -> Iterator[str]:
        return iter(_unpacked(self._packed))

    def __len__(self) -> int:
        return len(_unpacked(self._packed))


@lru_cache(maxsize=8)
def _unpacked(packed: bytes) -> dict[str, Any]:
    data: dict[str, Any] = json.loads(zlib.decompress(packed))
    return data


@dataclass(frozen=True)
class Row:
    """One verdict, or with status `error` or `not run` what kept a gate from being asked.

    `gate` is empty where a test broke down before it came to one. `warned` passed with a warning,
    `allowed` did not pass and the policy lets it be. `place` is where a test of one's own failed:
    file and line from 1. `data` are the verdict's JSON data, `marks` what stands beside its
    subject, `part` tells tests of one gate apart: `load`, `call[T1]`.
    """

    gate: str
    subject: str
    status: str
    summary: str
    warned: bool = False
    allowed: bool = False
    reasons: tuple[str, ...] = ()
    place: tuple[str, int] | None = None
    data: Mapping[str, Any] | None = None
    marks: tuple[str, ...] = ()
    test: str = ""
    part: str = ""

    @property
    def asked(self) -> tuple[str, str, str]:
        """What tells it from the others of its run."""
        return self.gate, self.subject, self.part

    @property
    def name(self) -> str:
        """Its subject with its marks."""
        return " ".join((self.subject, *self.marks))

    @property
    def label(self) -> str:
        """The status, or `warned`."""
        return "warned" if self.warned else self.status

    @property
    def word(self) -> str:
        """The label as the table has it: what is red stands out without colours."""
        return self.label.upper() if self.red else self.label

    @property
    def red(self) -> bool:
        """Whether it fails the run."""
        return self.status != "passed" and not self.allowed


def ranked(rows: Iterable[Row]) -> list[Row]:
    """Errors, failed, unproven, not run, warned, passed; each with behaviour first, by subject."""
    return sorted(
        rows, key=lambda r: (_ORDER.get(r.label, 0), r.gate != "behaviour", r.subject, r.gate)
    )


def count(rows: Sequence[Row]) -> str:
    """`passed: compression 2/3, fidelity 3/3`, by gate."""
    parts = []
    for gate in dict.fromkeys(row.gate for row in rows if row.gate):
        of_gate = [row for row in rows if row.gate == gate]
        passed = sum(1 for row in of_gate if row.status == "passed")
        parts.append(f"{gate} {passed}/{len(of_gate)}")
    return "passed: " + ", ".join(parts)
