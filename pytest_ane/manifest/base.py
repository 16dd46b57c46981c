"""The base of all manifest records: frozen, strict about keys and types, kebab-case in the file.

A string below a field is its description.
"""

from __future__ import annotations

import re
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    GetCoreSchemaHandler,
    GetJsonSchemaHandler,
    Strict,
    ValidationInfo,
)
from pydantic_core import CoreSchema, PydanticCustomError, core_schema

if sys.version_info >= (3, 11):
    from tomllib import TOMLDecodeError as TOMLDecodeError
    from tomllib import loads as loads
else:
    from tomli import TOMLDecodeError as TOMLDecodeError
    from tomli import loads as loads

KeyPath = tuple[str | int, ...]
Table = dict[str, Any]


def kebab(name: str) -> str:
    """A field's key in the file: `min-cosine` for `min_cosine`."""
    return name.replace("_", "-")


class Record(BaseModel):
    """A frozen table whose keys are written in kebab-case; Python code uses the field names."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", strict=True, allow_inf_nan=False, defer_build=True,
        use_attribute_docstrings=True, alias_generator=kebab, validate_by_alias=True,
        validate_by_name=True,
    )  # fmt: skip


class CoremlRecord(Record):
    """A frozen table whose keys are named as coremltools names them."""

    model_config = ConfigDict(alias_generator=None)


@dataclass(frozen=True)
class Form:
    """Annotation of a text that must match a pattern as a whole, which JSON Schema knows too.

    `message` is what the text must be, for people.
    """

    pattern: str
    message: str

    def __get_pydantic_core_schema__(
        self, source: Any, handler: GetCoreSchemaHandler
    ) -> CoreSchema:
        return core_schema.no_info_after_validator_function(self._check, handler(source))

    def __get_pydantic_json_schema__(
        self, schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> dict[str, Any]:
        return {**handler(schema), "pattern": f"^(?:{self.pattern})$"}

    def _check(self, text: str) -> str:
        if re.fullmatch(self.pattern, text) is None:
            raise ValueError(self.message)
        return text


@dataclass(frozen=True)
class OrText:
    """Annotation of what may be written as one text of a pattern; for JSON Schema alone."""

    pattern: str = ".+"

    def __get_pydantic_json_schema__(
        self, schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> dict[str, Any]:
        return {"anyOf": [{"type": "string", "pattern": f"^(?:{self.pattern})$"}, handler(schema)]}


def from_folder(path: Path, info: ValidationInfo) -> Path:
    """A path from the manifest's folder on, which the context names; `..` is kept.

    For symbolic links may lead anywhere.
    """
    if path == Path():
        raise ValueError("is empty; name a file")
    return info.context["folder"] / path.expanduser() if info.context else path


Relative = Annotated[Path, Strict(False), AfterValidator(from_folder)]
"""A path, relative to the manifest's folder where one is validated."""
RELATIVE = AfterValidator(lambda text, info: str(from_folder(Path(text), info)))
"""Annotation of a text that begins with such a path."""


def listed(value: object) -> object:
    """A single text as a list of one."""
    return [value] if isinstance(value, str) else value


def misplaced(path: KeyPath, message: str) -> PydanticCustomError:
    """An error of a whole table whose cause is one key in it, at a path relative to the table."""
    # Braces would be read as placeholders of pydantic's template, so the text goes in as one.
    return PydanticCustomError("misplaced", "{message}", {"path": path, "message": message})
