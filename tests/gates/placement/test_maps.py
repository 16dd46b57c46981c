"""The page of predicted maps is current, as far as packages of wheels tell."""

from __future__ import annotations

import pytest

from benchmarks.placement_maps import INSTALLED, maps, missing, predictions, rows
from tests.packages import published


@pytest.mark.parametrize("name", [pytest.param("full", marks=pytest.mark.slow), "tiny"])
def test_the_maps_of_crepe_are_those_of_the_page(name: str) -> None:
    pairs = predictions(published(INSTALLED, name))
    assert missing([*rows(f"{INSTALLED} {name}", pairs), *maps(pairs, set())]) == []


def test_a_map_that_places_alike_is_shown_once() -> None:
    pairs = predictions(published(INSTALLED, "tiny"))
    shown: set[tuple[object, ...]] = set()
    assert list(maps(pairs, shown))
    assert list(maps(pairs, shown)) == []


def test_a_line_that_the_page_lacks_is_named() -> None:
    assert missing(["", "| none | 1 |"]) == ["| none | 1 |"]
