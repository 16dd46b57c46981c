"""A real stack with one spoilt shard, or two: red, and both drift and bisect name them."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path

import pytest

from pytest_ane.tools.bisect import most_evaluations
from tests.forked import Forge
from tests.suite.conftest import SOURCE, UNIFORM

SHARDS = 34
POLICY = """
[models.smollm2.policy.behaviour]
min-top1 = 0.9
max-kl = 0.04
min-centred-cosine = 0.9
min-greedy = 10
"""
SPOILT = """
[models.smollm2.shard.{shard}.compression]
method = "palettize"
mode = "kmeans"
nbits = 2
granularity = "per_tensor"
"""


def run(forge: Forge, folder: Path, cache: Path, command: str, spoilt: Sequence[str]) -> list[str]:
    text = SOURCE + UNIFORM + POLICY + "".join(SPOILT.format(shard=shard) for shard in spoilt)
    (folder / "shards.toml").write_text(text)
    done = forge.run(["pytest_ane.cli", command, f"--ane-cache={cache}"], folder)
    assert done.returncode == 0, done.stdout
    return done.stdout.splitlines()


@pytest.mark.drawn
@pytest.mark.heavy
@pytest.mark.parametrize(("seed", "count"), [(1, 1), (2, 2)])
def test_spoilt_shards_are_named(
    forge: Forge, tmp_path: Path, cache_root: Path, seed: int, count: int
) -> None:
    guilty = sorted(random.Random(seed).sample([f"L{i:02d}" for i in range(30)], count))

    *trials, says = run(forge, tmp_path, cache_root, "bisect", guilty)
    assert " exact: none - red (" in trials[0]
    named, _, _ = says.partition(" is to blame" if count == 1 else " are to blame")
    assert named == ", ".join(guilty)
    assert len(trials) <= most_evaluations(SHARDS, count)

    *_, stack, says = run(forge, tmp_path, cache_root, "drift", guilty)
    assert stack.startswith("stack failed: ")
    named, _, _ = says.partition(" breaks it" if count == 1 else " break it")
    assert sorted(named.split(", ")) == guilty


@pytest.mark.drawn
@pytest.mark.heavy
def test_without_a_spoilt_shard_it_is_green(forge: Forge, tmp_path: Path, cache_root: Path) -> None:
    assert "green as it is" in run(forge, tmp_path, cache_root, "bisect", [])[-1]
