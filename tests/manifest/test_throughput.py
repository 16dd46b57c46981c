"""Throughput's policy: shares, percent, and what is neither."""

from __future__ import annotations

import jsonschema
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_ane.manifest import ThroughputPolicy, json_schema
from pytest_ane.manifest.throughput import regression
from tests.manifest.conftest import Complaints, Read

TABLES = """
[models.m.shard.a]
artifact = "a.mlpackage"
reference = "none"
[models.m.shard.a.policy.throughput]
max-regression = {}
[models.m.shard.b]
artifact = "b.mlpackage"
reference = "none"
[models.m.policy.throughput]
min-tok-s = 8.59
max-regression = "5%"
"""
WRONG = ["5", "5.%", "-1%", "100%", "calibrate", "", 1, 7, -0.1, 1.0, True, [], None, float("nan")]


@pytest.mark.parametrize(
    ("value", "share"),
    [("5%", 0.05), (" 12.5 % ", 0.125), ("0%", 0), (0.05, 0.05), (0, 0), ("0.3%", 0.003)],
)
def test_shares(value: object, share: float) -> None:
    assert regression(value) == share


@pytest.mark.parametrize("value", WRONG)
def test_no_shares(value: object) -> None:
    with pytest.raises(ValueError, match=r'^must be a share such as "5%" or 0\.05, less'):
        regression(value)


@given(st.integers(0, 9999))
def test_percent_is_a_hundredth(hundredths: int) -> None:
    share = regression(f"{hundredths / 100:.2f}%")
    assert share == pytest.approx(hundredths / 10_000)
    assert regression(share) == share


def test_the_nearer_table_wins_key_by_key(read: Read) -> None:
    manifest = read(TABLES.format('"calibrated"'))
    a, b = (shard.policy.throughput for shard in manifest.shards)
    assert a == ThroughputPolicy(max_regression="calibrated", min_tok_s=8.59)
    assert b == manifest.models[0].policy.throughput
    assert b.max_regression == 0.05


def test_what_is_wrong_is_said_once_with_its_line(complaints: Complaints) -> None:
    (line,) = complaints(TABLES.format("5"))
    assert line == (
        "shards.toml:6: [models.m.shard.a.policy.throughput] max-regression = 5: must be a share "
        'such as "5%" or 0.05, less than all of it, or "calibrated".'
    )


@pytest.mark.parametrize("floor", ["0", "-1.0", "nan", '"8"'])
def test_a_floor_is_above_zero(complaints: Complaints, floor: str) -> None:
    (line,) = complaints(TABLES.format(0.1).replace("8.59", floor))
    assert "min-tok-s" in line


@pytest.mark.parametrize(
    ("value", "valid"),
    [(0.05, True), ("5%", True), ("calibrated", True), (7, False), ("5", False), ("100%", False)],
)
def test_the_schema_agrees(value: object, valid: bool) -> None:
    table = {"models": {"m": {"policy": {"throughput": {"max-regression": value}}}}}
    found = jsonschema.Draft202012Validator(json_schema()).is_valid(table)
    assert found is valid
