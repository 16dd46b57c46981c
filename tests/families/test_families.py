"""Families by name."""

from __future__ import annotations

import pytest

from pytest_ane.core.errors import ManifestError, SourceError
from pytest_ane.families import Cut, get_family
from pytest_ane.manifest import FAMILIES
from pytest_ane.sources import SeededSource


@pytest.mark.parametrize("name", FAMILIES)
def test_a_family_has_what_the_protocol_asks(name: str) -> None:
    family = get_family(name)
    assert family.VERSION.startswith(f"{name}/")
    assert callable(family.open_model)
    assert callable(family.layout)
    assert callable(family.wiring)
    assert callable(family.starts_whole)
    assert callable(family.spread)


@pytest.mark.parametrize("name", ["", "Llama", "base", "..errors"])
def test_an_unknown_family(name: str) -> None:
    with pytest.raises(ManifestError) as error:
        get_family(name)
    assert str(error.value) == (
        f"No family {name!r}; there is: {', '.join(FAMILIES)}. A module of that name is neither "
        "in the manifest's folder nor installed."
    )


@pytest.mark.parametrize(("name", "shard"), [("zaya", "L00"), ("gemma4", "L00.attn")])
def test_a_token_beyond_the_vocabulary_is_an_error(name: str, shard: str) -> None:
    """Of synthetic weights too, which have a row for any number."""
    family = get_family(name)
    model = family.open_model(SeededSource(1, family.spread), Cut((shard,)))
    with pytest.raises(SourceError, match="has no row 300000"):
        model.embed([2, 300_000])
