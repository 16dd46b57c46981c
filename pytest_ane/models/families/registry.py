"""Families in manifests: ours by name, the user's own by import, and which one reads a source."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from importlib import import_module
from types import ModuleType
from typing import Any, cast

from pytest_ane.manifest import FAMILIES
from pytest_ane.manifest.chain import EMBEDDING
from pytest_ane.manifest.load import importable
from pytest_ane.mlprogram.errors import ManifestError, SourceError
from pytest_ane.models.families import Cut, Family
from pytest_ane.models.families.own import code_digests, import_code
from pytest_ane.models.sources import Source
from pytest_ane.models.sources.base import architecture_of

_FUNCTIONS = ("open_model", "layout", "wiring", "starts_whole", "spread")


def get_family(name: str) -> Family:
    """One of ours by name, or the user's own module, or its `FAMILY`; `ManifestError` for none."""
    if name in FAMILIES:
        from pytest_ane.models.families._decoders import DECODERS

        if name in DECODERS:
            return cast("Family", DECODERS[name])
        return _family_in(import_module(f"pytest_ane.models.families.{name}"))
    if not importable(name):
        raise ManifestError(
            f"No family {name!r}; there is: {', '.join(FAMILIES)}. A module of that name is "
            "neither in the manifest's folder nor installed."
        )
    family = _family_in(import_code(name, f"Family {name!r}"))
    for function in _FUNCTIONS:
        if not callable(getattr(family, function, None)):
            raise ManifestError(
                f"Family {name!r} has no function {function}(); a family has "
                f"{', '.join(_FUNCTIONS)} and a VERSION; or its module has a FAMILY, such as a "
                "DecoderFamily."
            )
    if not isinstance(getattr(family, "VERSION", None), str):
        raise ManifestError(f"Family {name!r} has no VERSION, a text that every cache key holds.")
    return family


def _family_in(module: ModuleType) -> Family:
    # Functions of its own go first: FAMILY may be another's, which it imports to build on.
    own = module if hasattr(module, "open_model") else getattr(module, "FAMILY", module)
    return cast("Family", own)


def is_encoder(family: str | None, shards: Sequence[str]) -> bool:
    """Whether a family's shards give embeddings, and no logits."""
    if family is None:
        return False
    return any(wire.gives == EMBEDDING for wire in get_family(family).wiring(shards))


def family_of(source: Source) -> str:
    """The family that reads a source, by what its file says that it holds.

    A family tells the values of `model_type` and of GGUF's `general.architecture` that are its own
    as `published` and `converted`; one that does not is published under its name alone. Of several
    with one value, as GGUF files of Llama and Mixtral have, it is the first that opens the source.
    """
    key, said = architecture_of(source.value)
    kind = "converted" if key == "general.architecture" else "published"
    known: dict[str, list[str]] = {}
    for name in FAMILIES:
        own = () if kind == "converted" else (name,)
        for value in getattr(get_family(name), kind, own):
            known.setdefault(value, []).append(name)
    if not isinstance(said, str) or said not in known:
        what = f"its {key} is {said!r:.100}" if said else f"it has no {key}"
        raise SourceError(
            f"{source.label}: {what}, and no family reads that; known are "
            f"{', '.join(sorted(filter(None, known)))}. docs/how-to/own-model.md tells how to "
            "write a family of your own."
        )
    for name in known[said]:
        with suppress(SourceError):
            get_family(name).open_model(source, Cut(()))
            return name
    return known[said][0]


def identify_family(name: str) -> dict[str, Any]:
    """What shards depend on in a family's code: its version, and of the user's own its source."""
    family, code = get_family(name), {} if name in FAMILIES else code_digests(name)
    reference = getattr(family, "reference", "")
    if isinstance(reference, str) and reference and not reference.startswith("transformers."):
        code |= code_digests(reference)
    return {"name": name, "version": family.VERSION, "code": code}
