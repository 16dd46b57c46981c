"""Strict JSON, written; tests of evidence and of plans hold its reader."""

from __future__ import annotations

import json
import math
from dataclasses import asdict
from pathlib import Path

from pytest_ane.gates.verdict import Finding, Where
from pytest_ane.mlprogram.strict_json import parse_json, strict


def test_what_json_has_no_form_for_becomes_text() -> None:
    data = {1: (math.nan, math.inf, -math.inf, 0.5), "path": Path("a"), "none": None, "yes": True}
    text = json.dumps(strict(data), allow_nan=False)
    assert parse_json(text) == {
        "1": ["NaN", "Infinity", "-Infinity", 0.5], "path": "a", "none": None, "yes": True
    }  # fmt: skip


def test_dataclasses_become_objects_at_any_depth() -> None:
    finding = Finding("note", "warm", Where(op="conv", position=3))
    assert strict({"found": (finding,)})["found"] == [asdict(finding)]
    assert strict(finding)["where"]["position"] == 3
