"""Families: architectures we know how to cut into shards, run in float32, and convert."""

from __future__ import annotations

from importlib import import_module
from typing import cast

from pytest_ane.errors import ManifestError
from pytest_ane.families.base import (
    Conversion,
    Cut,
    Family,
    Inputs,
    LanguageModel,
    Layout,
    Port,
    Reference,
    Wire,
)
from pytest_ane.families.streams import Streams, entering, merge

FAMILIES = ("llama",)

__all__ = [
    "FAMILIES",
    "Conversion",
    "Cut",
    "Family",
    "Inputs",
    "LanguageModel",
    "Layout",
    "Port",
    "Reference",
    "Streams",
    "Wire",
    "entering",
    "get_family",
    "merge",
]


def get_family(name: str) -> Family:
    """A family's module by name.

    Raises:
        ManifestError: there is no such family.
    """
    if name not in FAMILIES:
        raise ManifestError(f"No family {name!r}; there is: {', '.join(FAMILIES)}.")
    return cast("Family", import_module(f"pytest_ane.families.{name}"))
