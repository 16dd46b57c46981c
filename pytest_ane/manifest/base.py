"""The base of all manifest records: frozen, strict about keys, kebab-case in the file."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict


def kebab(name: str) -> str:
    """`min-cosine` for `min_cosine`."""
    return name.replace("_", "-")


class Record(BaseModel):
    """A frozen table whose keys are written in kebab-case; unknown keys are errors."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", alias_generator=kebab, use_attribute_docstrings=True
    )


class CoremlRecord(BaseModel):
    """A frozen table whose keys are named as coremltools names them."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)
