"""Models that a family would compute wrongly are refused, rather than taken for another model."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping
from typing import Any

from pytest_ane.core.errors import SourceError


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
            found = value(key)
        except SourceError:
            continue
        if found not in accepted:
            raise SourceError(
                f"{label}: {key} is {found!r}, and family {family!r} computes {accepted[0]!r} only."
            )


def check_names(
    label: str, family: str, names: Collection[str], known: re.Pattern[str], because: str
) -> None:
    """Refuse weights with a tensor that a family would leave out unsaid, such as a bias.

    Raises:
        SourceError: names the first such tensor, and ends with `because`.
    """
    if unknown := sorted(name for name in names if not known.fullmatch(name)):
        raise SourceError(
            f"{label}: family {family!r} does not compute with its tensor {unknown[0]!r} "
            f"({len(unknown)} such in all){because}"
        )
