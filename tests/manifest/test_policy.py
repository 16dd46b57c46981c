"""Policies: sizes, systems, and thresholds that make no sense."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
from pydantic import ValidationError

from pytest_ane.manifest import Policy
from pytest_ane.manifest.base import Record
from pytest_ane.manifest.policy import (
    BehaviourPolicy,
    CompressionPolicy,
    FidelityPolicy,
    HazardsPolicy,
    ThroughputPolicy,
    count,
    regression,
    size,
)
from tests.manifest.conftest import Complaints, Read


@pytest.mark.parametrize(
    ("read", "text", "number"),
    [
        *((read, 5, 5) for read in (size, count)),
        (size, "5 kB", 5_000),
        (size, "5MB", 5_000_000),
        (size, "4.8 MiB", 5_033_164),
        (size, "2 kiB", 2048),
        (size, "2.01 kB", 2010),
        (size, "1 GiB", 2**30),
        (count, "10M", 10_000_000),
        (count, "2 k", 2000),
        (count, "0.0015k", 1),
    ],
)
def test_numbers(read: Callable[[object], object], text: object, number: int) -> None:
    assert read(text) == number


WORDS = {size: 'must be a number of bytes or a size such as "5 MB"', count: 'a text such as "10M"'}


@pytest.mark.parametrize("read", WORDS)
@pytest.mark.parametrize(
    "value", ["", "5", "-5 MB", "5 TB", "five MB", "5 mb", "1 KiB", "10Mi", 5.0, True, None, []]
)
def test_no_numbers(read: Callable[[object], object], value: object) -> None:
    with pytest.raises(ValueError, match=WORDS[read]):
        read(value)


LENIENT: list[tuple[type[Record], str, list[Any]]] = [
    # What nothing can miss is no limit.
    (FidelityPolicy, "min_cosine", [math.nan, 1.01, True, -1, 0]),
    (FidelityPolicy, "min_live_probes", [0]),
    (FidelityPolicy, "min_contribution", [math.nan, -0.5]),
    (FidelityPolicy, "max_relative_l2", [math.inf, -0.1, 1e9]),
    (FidelityPolicy, "max_non_finite", [1.0]),
    (FidelityPolicy, "max_algebra", [1e9]),
    (FidelityPolicy, "max_rounding", [2]),
    (FidelityPolicy, "max_total_ratio", [1e9]),
    (FidelityPolicy, "outputs", [{"y": {"min_cosine": math.nan}}, {"y": {"min_live_probes": 1}}]),
    (FidelityPolicy, "outputs", [{"y": {"max_relative_l2": 1e9}}, {"": {}}]),
    (HazardsPolicy, "max_dropped_weight", [1]),
    (HazardsPolicy, "warn_table_error", [1e9]),
    (BehaviourPolicy, "min_top1", [0, math.nan]),
    (BehaviourPolicy, "max_kl", [1e9, math.inf, -0.1]),
    (BehaviourPolicy, "min_centred_cosine", [-1, math.nan]),
    (BehaviourPolicy, "min_embedding_cosine", [-1]),
    (BehaviourPolicy, "max_perplexity_increase", [1e9]),
    (BehaviourPolicy, "min_greedy", [-1]),
    (BehaviourPolicy, "max_reference_perplexity", [1]),
    (CompressionPolicy, "max_weight_error", [1e9]),
    (CompressionPolicy, "max_bytes", [0]),
    (CompressionPolicy, "min_ratio", [0.0, math.nan]),
    (Policy, "unproven", ["ignore"]),
]


@pytest.mark.parametrize(
    ("record", "key", "value"), [(r, key, value) for r, key, values in LENIENT for value in values]
)
def test_thresholds_that_would_let_anything_pass(
    record: type[Record], key: str, value: Any
) -> None:
    with pytest.raises(ValidationError):
        record.model_validate({key: value})


def test_an_output_s_thresholds_are_laid_over_the_shard_s() -> None:
    policy = FidelityPolicy.model_validate(
        {
            "min-cosine": 0.9,
            "max-relative-l2": 0.2,
            "outputs": {"z": {"min-cosine": 0.1, "min-contribution": 0.2}},
        }
    )
    y, z = policy.of_output("y"), policy.of_output("z")
    assert (y.min_cosine, y.max_relative_l2, y.min_contribution) == (0.9, 0.2, None)
    assert (z.min_cosine, z.max_relative_l2, z.min_contribution) == (0.1, 0.2, 0.2)
    assert y.max_non_finite == 0


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
    with pytest.raises(ValueError, match=r'^must be a share below 1, such as "5%" or 0\.05, or'):
        regression(value)


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
        'below 1, such as "5%" or 0.05, or "calibrated".'
    )
