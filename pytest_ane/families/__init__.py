"""Families: architectures we know how to cut into shards, run in float32, and convert."""

from __future__ import annotations

from typing import Any, cast

from pytest_ane.core.errors import ManifestError
from pytest_ane.families.base import (
    Branch,
    Buildable,
    Conversion,
    Cut,
    Family,
    Filling,
    Inputs,
    LanguageModel,
    Layout,
    Port,
    Ports,
    Reference,
    Routes,
    Routing,
    Streams,
    Undecided,
    Wire,
    apply_output,
    calls_of,
    entry_scale,
    feedback_of,
    filling_of,
    first_feedback,
    ports_of,
    recurrent_of,
    residual_of,
    routing_of,
    shard_input,
    shifts,
    undecided_of,
    window_of,
)
from pytest_ane.families.user_code import code_digests, import_code, make_importable
from pytest_ane.manifest import FAMILIES
from pytest_ane.manifest.checks import importable

_FUNCTIONS = ("open_model", "layout", "wiring", "starts_whole", "spread")

__all__ = [
    "FAMILIES",
    "Branch",
    "Buildable",
    "Conversion",
    "Cut",
    "Family",
    "Filling",
    "Inputs",
    "LanguageModel",
    "Layout",
    "Port",
    "Ports",
    "Reference",
    "Routes",
    "Routing",
    "Streams",
    "Undecided",
    "Wire",
    "apply_output",
    "calls_of",
    "entry_scale",
    "feedback_of",
    "filling_of",
    "first_feedback",
    "get_family",
    "identify_family",
    "make_importable",
    "ports_of",
    "recurrent_of",
    "residual_of",
    "routing_of",
    "shard_input",
    "shifts",
    "undecided_of",
    "window_of",
]


def get_family(name: str) -> Family:
    """A family's module: one of ours by its name, or the user's own.

    Raises:
        ManifestError: there is none, it cannot be imported, or it lacks what a family has.
    """
    if name in FAMILIES:
        module = import_code(f"pytest_ane.families.{name}", "family")
        return cast("Family", getattr(module, "FAMILY", module))
    if not importable(name):
        raise ManifestError(
            f"No family {name!r}; there is: {', '.join(FAMILIES)}. A module of that name is "
            "neither in the manifest's folder nor installed."
        )
    family = import_code(name, f"Family {name!r}")
    for function in _FUNCTIONS:
        if not callable(getattr(family, function, None)):
            raise ManifestError(
                f"Family {name!r} has no function {function}(); a family has "
                f"{', '.join(_FUNCTIONS)} and a VERSION."
            )
    if not isinstance(getattr(family, "VERSION", None), str):
        raise ManifestError(f"Family {name!r} has no VERSION, a text that every cache key holds.")
    return cast("Family", family)


def identify_family(name: str) -> dict[str, Any]:
    """What shards depend on in a family's code: its version, and of the user's own its source."""
    code = {} if name in FAMILIES else code_digests(name)
    return {"name": name, "version": get_family(name).VERSION, "code": code}
