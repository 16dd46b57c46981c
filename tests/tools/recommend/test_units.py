"""Units of a shard, and the compression that gives each its setting."""

from __future__ import annotations

import pytest

from pytest_ane.gates.compression.measure import CompressionMeasurement
from pytest_ane.make import Census, Distortion
from pytest_ane.manifest import Linear, Palettize, Uncompressed
from pytest_ane.mlprogram.weights import Stage, Weight
from pytest_ane.tools._recommend_search import Option, Unit, shard_settings, units_of

MENU = {"six": Palettize(nbits=6, group_size=16), "eight": Palettize(nbits=8), "int8": Linear()}


def measured(sizes: dict[str, int], sse: float) -> CompressionMeasurement:
    """Weights by name with bytes; 0 for one that was left as it is."""
    weights = tuple(
        Weight(name, (8, 8), size or 128, 8, PALETTE if size else ())
        for name, size in sizes.items()
    )
    errors = tuple(Distortion(name, sse if size else 0.0, 1.0) for name, size in sizes.items())
    return CompressionMeasurement(Census(weights), 1000, (), errors)


PALETTE = (Stage(op="constexpr_lut_to_dense", nbits=8, groups=1, blocks=1),)


def test_weights_alike_but_for_numbers_are_one_unit() -> None:
    names = ("expert_0_fc1", "expert_1_fc1", "router", "norm")
    built = {
        "six": measured(dict.fromkeys(names[:3], 60) | {"norm": 0}, 0.5),
        "eight": measured(dict.fromkeys(names[:2], 80) | {"router": 0, "norm": 0}, 0.1),
    }
    experts, router = units_of("L00", built, ())
    assert experts == Unit(
        "L00", "expert_*_fc*", (Option("six", 120, 1.0), Option("eight", 160, 0.2))
    )
    assert router == Unit("L00", "router", (Option("six", 60, 0.5),))
    assert units_of("L00", built, ("rout*",)) == (experts,)
    assert experts.option("eight").size == 160


def test_a_glob_that_would_name_other_weights_is_not_used() -> None:
    """`a_*` would take in `a_bias` as well."""
    built = {"six": measured({"a_0": 60, "a_1": 60, "a_bias": 0}, 0.5)}
    assert [unit.glob for unit in units_of("L00", built, ())] == ["a_0", "a_1"]


def unit(glob: str, size: int) -> Unit:
    return Unit("L00", glob, tuple(Option(name, size, 1.0) for name in MENU))


def test_what_most_bytes_have_is_the_table_and_the_rest_overrides() -> None:
    q, k, up = unit("q*", 10), unit("k*", 10), unit("up*", 100)
    made = shard_settings((q, k, up), {q: "eight", k: "int8", up: "six"}, MENU, ("router*",))
    assert made == Palettize.model_validate(
        {
            "nbits": 6,
            "group_size": 16,
            "keep": ["router*"],
            "overrides": [
                {"weights": "q*", "nbits": 8, "group_size": 32},
                {"weights": "k*", "method": "linear"},
            ],
        }
    )
    assert made.for_weight("q_0") == MENU["eight"]
    assert made.for_weight("k_0") == MENU["int8"]
    assert made.for_weight("up_0") == MENU["six"]
    assert made.for_weight("router_0") == Uncompressed()


def test_many_small_units_do_not_outweigh_one_large() -> None:
    q, k, up = unit("q*", 10), unit("k*", 10), unit("up*", 100)
    made = shard_settings((q, k, up), {q: "six", k: "six", up: "int8"}, MENU, ())
    assert made.model_copy(update={"overrides": ()}) == MENU["int8"]
    assert [override.weights for override in made.overrides] == ["q*", "k*"]


@pytest.mark.parametrize("name", MENU)
def test_one_setting_for_all_is_that_setting(name: str) -> None:
    both = unit("q*", 10), unit("k*", 10)
    assert shard_settings(both, dict.fromkeys(both, name), MENU, ()) == MENU[name]


def test_a_shard_without_units_stays_as_it_is() -> None:
    assert shard_settings((), {}, MENU, ()) == Uncompressed()
