"""Configurations with values that no model has: read, or refused with a sentence."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from copy import deepcopy
from typing import Any

import pytest

from pytest_ane.mlprogram.errors import AneError
from pytest_ane.models.families import Cut
from pytest_ane.models.families.gemma4 import FAMILY as GEMMA4
from pytest_ane.models.families.llama import FAMILY
from pytest_ane.models.families.zaya.config import ZayaConfig
from tests.models.families.gemma4.tiny import MemorySource, tiny_config
from tests.models.families.llama.tiny import tiny_source as tiny_llama
from tests.models.families.zaya.tiny import tiny_source as tiny_zaya

Values = dict[str, Any]
VALUES = [
    10**400, -(10**400), 2**63, 0, -1, 1e308, 1e-320, float("inf"), float("nan"), True, None, "",
    "\x1b[2J" * 9999, [], [10**400], {}, {"a": 10**400},
]  # fmt: skip


def llama(values: Values | None = None) -> Values:
    source = tiny_llama(layers=2, heads=4, kv_heads=2, head=8, ffn=20, vocabulary=11)
    if values is not None:
        source.values = values
        FAMILY.read(source, Cut(()))
    return source.values


def zaya(values: Values | None = None) -> Values:
    source = tiny_zaya()
    if values is not None:
        source.values = values
        ZayaConfig.read(source, 3, Cut((), context=9))
    return source.values


def gemma4(values: Values | None = None) -> Values:
    if values is not None:
        GEMMA4.read(MemorySource({}, values), Cut((), stateful=True))
    return tiny_config()


def paths(table: Mapping[str, Any], path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """Every key, nested ones too."""
    for key, value in table.items():
        yield (*path, key)
        if isinstance(value, Mapping):
            yield from paths(value, (*path, key))


@pytest.mark.parametrize("family", [llama, zaya, gemma4])
def test_any_value_of_any_key(family: Callable[..., Values]) -> None:
    refused: list[str] = []
    for path in list(paths(family())):
        for value in VALUES:
            values = deepcopy(family())
            table = values
            for key in path[:-1]:
                table = table[key]
            table[path[-1]] = value
            try:
                family(values)
            except AneError as error:
                refused.append(str(error))
    assert len(refused) > 50
    assert all(map(str.isprintable, refused))
    assert max(map(len, refused)) <= 1000
