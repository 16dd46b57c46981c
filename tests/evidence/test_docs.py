"""The example in the documentation is a statement that can be read."""

from __future__ import annotations

import re
from pathlib import Path

from pytest_ane.evidence import Statement
from tests.evidence.makers import judged

PAGE = Path(__file__).resolve().parents[2] / "docs/how-to/evidence.md"


def test_the_example() -> None:
    (example,) = re.findall(r"```json\n(.*?)```", PAGE.read_text(), re.DOTALL)
    found = Statement.from_json(example.encode())
    assert found.to_json() == example
    (verdict,) = judged(found.measurement)
    assert (found.subject, verdict.status) == ("smollm2:L01", "passed")
