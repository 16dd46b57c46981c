"""A model's configuration: published keys, dotted where tables are nested."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pytest_ane.errors import SourceError


def lookup(config: Mapping[str, Any], key: str, absent: str) -> Any:
    """What `text_config.hidden_size` leads to; `SourceError(absent)` where it leads nowhere."""
    found: Any = config
    for part in key.split("."):
        if not isinstance(found, Mapping) or part not in found:
            raise SourceError(absent)
        found = found[part]
    return found


def overridden(config: Mapping[str, Any], overrides: Mapping[str, Any]) -> dict[str, Any]:
    """A configuration with some keys replaced, nested tables key by key."""
    merged = dict(config)
    for key, value in overrides.items():
        old = merged.get(key)
        nested = isinstance(old, Mapping) and isinstance(value, Mapping)
        merged[key] = overridden(old, value) if nested else value  # type: ignore[arg-type]
    return merged
