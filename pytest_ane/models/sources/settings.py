"""A model's configuration: published keys, dotted where tables are nested.

Models that a family would compute wrongly are refused, rather than taken for another model.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Collection, Mapping
from typing import Any

from pytest_ane.mlprogram.errors import SourceError

MAX_LAYERS = 10_000
"""As many as a model may have: lists of layers are made before any tensor is looked for."""
MAX_DIMENSION = 1 << 24
"""The largest dimension of a model, which is a vocabulary's, and far more than any has."""


def lookup(config: Mapping[str, Any], key: str, absent: str) -> Any:
    """What `text_config.hidden_size` leads to; `SourceError(absent)` where it leads nowhere."""
    value: Any = config
    for part in key.split("."):
        if not isinstance(value, Mapping) or part not in value:
            raise SourceError(absent)
        value = value[part]
    return value


def overridden(config: Mapping[str, Any], overrides: Mapping[str, Any]) -> dict[str, Any]:
    """A configuration with some keys replaced, nested tables key by key."""
    merged = dict(config)
    for key, value in overrides.items():
        old = merged.get(key)
        nested = isinstance(old, Mapping) and isinstance(value, Mapping)
        merged[key] = overridden(old, value) if nested else value  # type: ignore[arg-type]
    return merged


def architecture_of(value: Callable[[str], Any]) -> tuple[str, Any]:
    """The key by which a file says what model it holds, and what it says; None for nothing.

    `general.architecture` of GGUF, or `model_type` of `config.json`, of its `text_config` first.
    """
    for key in ("general.architecture", "text_config.model_type", "model_type"):
        try:
            said = value(key)
        except SourceError:
            continue
        if said:
            return key, said
    return "model_type", None


def positive(value: Any, what: str) -> float:
    """A number of a configuration; `what` begins the sentence of the `SourceError`."""
    plain = isinstance(value, (int, float)) and not isinstance(value, bool)
    # A whole number of JSON may be larger than any float.
    if not plain or not 0 < value <= sys.float_info.max:
        raise SourceError(f"{what} is {value!r:.100}, no positive number.")
    return float(value)


def whole(value: Any, what: str, most: int = MAX_DIMENSION) -> int:
    """A dimension of a configuration: a whole number from 1 to `most`, else `SourceError`."""
    number = positive(value, what)
    if number != int(number) or number > most:
        raise SourceError(f"{what} is {value!r:.100}, no whole number up to {most:,}.")
    return int(number)


def check_variant(
    label: str, family: str, value: Callable[[str], Any], computed: Mapping[str, tuple[Any, ...]]
) -> None:
    """Hold settings against those that a family computes.

    Args:
        label: what messages call the source.
        family: the family's name.
        value: a setting by its key; `SourceError` where it is absent, which is accepted.
        computed: accepted values by key, the usual one first.

    Raises:
        SourceError: names the first setting of another value.
    """
    for key, accepted in computed.items():
        try:
            setting = value(key)
        except SourceError:
            continue
        if setting not in accepted:
            raise SourceError(
                f"{label}: {key} is {setting!r}, and family {family!r} computes {accepted[0]!r} "
                "only."
            )


def check_names(
    label: str, family: str, names: Collection[str], known: re.Pattern[str], hint: str = ""
) -> None:
    """Refuse weights with a tensor that a family would leave out unsaid, such as a bias.

    Raises:
        SourceError: names the first such tensor, and ends with `hint`.
    """
    if unknown := sorted(name for name in names if not known.fullmatch(name)):
        message = (
            f"{label}: family {family!r} does not compute with its tensor {unknown[0]!r} "
            f"({len(unknown)} such in all), so its reference would be another model. {hint}"
        )
        raise SourceError(message.rstrip())
