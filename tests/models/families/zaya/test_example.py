"""The example's manifest: every shard of ZAYA1-8B, from synthetic weights of its dimensions."""

from __future__ import annotations

from pathlib import Path

from pytest_ane.manifest import load
from pytest_ane.models.families import Cut, get_family
from pytest_ane.models.sources import SeededSource

EXAMPLE = Path(__file__).parents[3] / "examples/zaya1-8b.toml"


def test_the_example_is_the_whole_model() -> None:
    (model,) = load(EXAMPLE).models
    family = get_family("zaya")
    cut = Cut(model.ids, model.max_tokens, variant=model.variant)
    opened = family.open_model(SeededSource(7, family.spread), cut)
    assert opened.description["variant"] == "notes"
    assert not opened.missing
    assert len(model.ids) == 83
    assert family.starts_whole(model.ids)
    assert opened.layout("L00").sees == "state"
