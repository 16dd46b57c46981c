"""Tables over one another."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from pytest_ane.manifest.problems import Layers, depth, only, value_at, without, written

DEFAULTS = {"probes": {"count": 2, "seed": 1}, "compression": {"method": "palettize", "nbits": 4}}
MODEL = {"probes": {"count": 3}, "compression": {"nbits": 6}}
SHARD = {"compression": {"method": "linear"}}

LAYERS = Layers(((("defaults",), DEFAULTS), (("models", "m"), MODEL)))


def test_tables_merge_key_by_key() -> None:
    assert LAYERS.merged() == {
        "probes": {"count": 3, "seed": 1},
        "compression": {"method": "palettize", "nbits": 6},
    }


def test_another_method_replaces_the_table() -> None:
    assert LAYERS.over(("s",), SHARD).merged()["compression"] == {"method": "linear"}


def test_the_same_method_does_not() -> None:
    same = {"compression": {"method": "palettize", "group_size": 8}}
    merged = LAYERS.over(("s",), same).merged()["compression"]
    assert merged == {"method": "palettize", "nbits": 6, "group_size": 8}


def test_lists_replace() -> None:
    layers = Layers((((), {"keep": ["a", "b"]}), ((), {"keep": ["c"]})))
    assert layers.merged() == {"keep": ["c"]}


def test_merging_changes_no_layer() -> None:
    LAYERS.over(("s",), SHARD).merged()
    assert DEFAULTS["probes"] == {"count": 2, "seed": 1}


def test_origins() -> None:
    assert LAYERS.origin(("probes", "count")) == ("models", "m", "probes", "count")
    assert LAYERS.origin(("probes", "seed")) == ("defaults", "probes", "seed")
    assert LAYERS.origin(("probes", "kinds")) == ("models", "m", "probes", "kinds")
    assert LAYERS.origin(("policy",)) == ("models", "m", "policy")


def test_paths() -> None:
    table = {"prompts": [{"name": "a"}, {"name": "b"}]}
    assert value_at(table, ("prompts", 1, "name")) == "b"
    assert value_at(table, ("prompts", 2, "name")) is None
    assert depth(table, ("prompts", 2, "name")) == 1
    assert depth(table, ("prompts", 1, "name")) == 3


def test_branches_of_unions_are_no_keys() -> None:
    table = {"compression": {"overrides": [{"nbits": 5}]}}
    location = ("compression", "palettize", "overrides", 0, "nbits")
    assert written(table, location) == ("compression", "overrides", 0, "nbits")


def test_parts_of_tables() -> None:
    assert without({"a": 1, "b": 2}, ["a"]) == {"b": 2}
    assert without(7, ["a"]) == 7
    assert only({"a": 1, "b": 2}, ["a"]) == {"a": 1}
    assert only(None, ["a"]) == {}


TABLES = st.recursive(
    st.integers(0, 9) | st.lists(st.integers(0, 9), max_size=2),
    lambda inner: st.dictionaries(st.sampled_from("abc"), inner, max_size=3),
    max_leaves=8,
).filter(lambda table: isinstance(table, dict))


@given(TABLES)
def test_a_table_over_itself_is_itself(table: dict[str, Any]) -> None:
    assert Layers((((), table), ((), table))).merged() == table


@given(st.lists(TABLES, min_size=1, max_size=4))
def test_every_leaf_comes_from_its_origin(tables: list[dict[str, Any]]) -> None:
    layers = Layers(tuple(((index,), table) for index, table in enumerate(tables)))
    for path, leaf in _leaves(layers.merged()):
        index, *inner = layers.origin(path)
        assert value_at(tables[int(index)], inner) == leaf


def _leaves(table: Any, path: tuple[str, ...] = ()) -> list[tuple[tuple[str, ...], Any]]:
    if not isinstance(table, dict):
        return [(path, table)]
    return [leaf for key, value in table.items() for leaf in _leaves(value, (*path, key))]
