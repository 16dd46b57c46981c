"""What the plugin recorded, read back and counted."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Item:
    """One test item.

    Attributes:
        predicted: it reached a prediction.
        compared: number of arrays compared after it.
        close: all of them within the tolerance.
        half: some value of the program was of type fp16.
        why: what failed, or why it was skipped.
    """

    item: str
    outcome: str
    predicted: bool
    compared: int
    close: bool
    half: bool
    opset: str
    ops: tuple[str, ...]
    why: str

    @property
    def function(self) -> str:
        """The test function, without parameters: `test_conv.py::TestConv::test_x`."""
        return self.item.partition("[")[0].rpartition("/")[2]


def read(folder: Path) -> list[Item]:
    """All items of a run, each once."""
    found: dict[str, Item] = {}
    for file in sorted(folder.glob("*.jsonl")):
        for line in file.read_text(encoding="utf-8").splitlines():
            record = json.loads(line)
            found[record["item"]] = Item(**{**record, "ops": tuple(record["ops"])})
    return [found[name] for name in sorted(found)]


@dataclass(frozen=True)
class Score:
    """Counts of items that compare numbers.

    Attributes:
        functions: test functions among them; `whole` those of which every item passed.
    """

    compared: int
    passed: int
    close: int
    functions: int
    whole: int

    @classmethod
    def of(cls, items: Iterable[Item]) -> Score:
        """Count."""
        numeric = [i for i in items if i.compared]
        passing: dict[str, bool] = {}
        for i in numeric:
            passing[i.function] = passing.get(i.function, True) and i.outcome == "passed"
        return cls(
            len(numeric),
            sum(i.outcome == "passed" for i in numeric),
            sum(i.close for i in numeric),
            len(passing),
            sum(passing.values()),
        )

    @property
    def pass_share(self) -> float:
        """Passed of compared, 0 to 1; 0 where nothing was compared."""
        return self.passed / self.compared if self.compared else 0.0

    @property
    def close_share(self) -> float:
        """Close of compared, 0 to 1; 0 where nothing was compared."""
        return self.close / self.compared if self.compared else 0.0
