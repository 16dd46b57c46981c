"""A ZAYA1 mixture at full size, as the example manifest builds it."""

from __future__ import annotations

from pathlib import Path

import pytest

from pytest_ane.make import Cache
from pytest_ane.make.shard import build_shard
from pytest_ane.manifest import load
from pytest_ane.project.models import OpenModel
from pytest_ane.tools._costs import costs_of
from pytest_ane.tools._devices import published
from pytest_ane.tools.bound import Group, bound_call

EXAMPLE = Path(__file__).parents[2] / "examples/zaya1-8b.toml"
EXPERTS = 16 * (4096 * 2048 + 2048 * 2048)
ROUTER = 2048 * 256 + 2 * 256 * 256 + 256 * 17


@pytest.mark.drawn
@pytest.mark.heavy
def test_a_mixture_of_zaya(tmp_path: Path) -> None:
    model = load(EXAMPLE).models[0]
    opened = OpenModel(model, Cache(tmp_path / "cache"))
    (shard,) = (one for one in model.shards if one.id == "L01")
    package = build_shard(
        shard, opened.cache, identity=opened.identity, model=lambda: opened.language_model
    ).path
    at = costs_of(package)
    assert at(1).macs == EXPERTS + ROUTER
    assert at(4).macs == 4 * at(1).macs
    assert sum(op.op == "conv" for op in at(4).operations) == 36
    # 4 bits a weight of the experts and a table of 16 fp16 numbers for 32 rows; the rest in fp16.
    tables = 16 * (4096 + 2048) // 32 * 16 * 2
    rest = at(1).weights - EXPERTS // 2 - tables
    assert 2 * ROUTER < rest < 2 * ROUTER + 60_000
    assert at(4).weights == at(1).weights
    groups = [Group("mixture", "L01", 40, at)]
    one, four = (bound_call(groups, published()["M4 Max"], tokens) for tokens in (1, 4))
    assert (one.kinds[0].bound_by, four.kinds[0].bound_by) == ("bandwidth", "compute")
    assert one.half_weights < 0.8 * one.total.seconds
    assert four.half_weights == pytest.approx(four.total.seconds)
