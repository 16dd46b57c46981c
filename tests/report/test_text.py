"""The header of a run, and sentences for its table."""

from __future__ import annotations

from pathlib import Path

import pytest

from pytest_ane.manifest import Policy, Probes, Shard
from pytest_ane.report.text import brief, header


def shard(name: str, seed: int = 7) -> Shard:
    return Shard(model="m", id=name, probes=Probes(seed=seed))


def test_the_header_says_what_was_asked_and_what_decides() -> None:
    line = header(asked="L01", selected=[shard("L01")], of=34, backend="cpu")
    assert line == "ane: L01 · shards 1 of 34 · backend cpu · placement by forecast · seed 7"
    assert len(line) <= 80


def test_on_a_device_the_header_says_so_and_that_the_plan_places() -> None:
    device = "Apple M4 Max, macOS 26.1 (25B78) · CPU_AND_NE"
    line = header(asked="L01", selected=[shard("L01")], of=34, backend="coreml", device=device)
    assert line == (
        f"ane: L01 · shards 1 of 34 · backend coreml · {device} · placement by Core ML's plan · "
        "seed 7"
    )


def test_the_anes_arithmetic_is_in_the_header() -> None:
    both = shard("L01").model_copy(update={"arithmetic": ("typed", "ane")})
    line = header(asked="L01", selected=[both], of=34, backend="cpu")
    assert "backend cpu · arithmetic typed, simulated ANE (h16+) · placement" in line
    on_device = header(asked="L01", selected=[both], of=1, backend="coreml", device="Apple M4")
    assert "simulated" not in on_device


def test_recorded_plans_are_in_the_header() -> None:
    policy = Policy.model_validate({"placement": {"require": "plan"}})
    required = shard("L01").model_copy(update={"policy": policy})
    for shards, words in (
        ([required], "placement by recorded plans ·"),
        ([required, shard("L02")], "placement by recorded plans and forecast ·"),
    ):
        assert words in header(asked="all", selected=shards, of=2, backend="cpu")
    assert words in header(asked="L02", selected=shards[1:], of=2, backend="cpu", recorded=True)


def test_overrides_are_in_the_header() -> None:
    line = header(
        asked="all",
        selected=[shard("L00", 1), shard("L01", 2), shard("L02", 1)],
        of=3,
        backend="cpu",
        thresholds=["min-cosine 0.5 for all", "min-contribution L*:0.9"],
        unproven="allow",
        cache=Path("/tmp/c"),
    )
    assert line == (
        "ane: all · shards 3 of 3 · backend cpu · placement by forecast · seed 1, 2 · "
        "min-cosine 0.5 for all · min-contribution L*:0.9 · unproven allowed · cache /tmp/c"
    )


@pytest.mark.parametrize(
    ("sentence", "shown"),
    [
        ("/home/me/models/a.gguf: no such file.", "a.gguf: no such file."),
        ("The folder /var/cache/ane cannot be written.", "The folder ane cannot be written."),
        ("'/a b/c/x.toml' and (/d/e/y.toml)", "'/a b/c/x.toml' and (y.toml)"),
        ("1/2 of conv 7/7, 3 and/or 4", "1/2 of conv 7/7, 3 and/or 4"),
        ("https://example.org/a/b", "https://example.org/a/b"),
        ("/file: missing.", "/file: missing."),
    ],
)
def test_paths_are_shortened_for_the_table(sentence: str, shown: str) -> None:
    assert brief(sentence) == shown
