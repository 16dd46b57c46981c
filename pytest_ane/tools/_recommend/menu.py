"""The menu: named settings a weight may get, from the manifest, a file, or the default here."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import TypeAlias

from pydantic import TypeAdapter, ValidationError

from pytest_ane.manifest import Compression, Linear, Palettize, Settings
from pytest_ane.manifest.base import TOMLDecodeError, loads
from pytest_ane.mlprogram.errors import ManifestError

Menu: TypeAlias = Mapping[str, Settings]


def _kmeans(nbits: int, group: int) -> Palettize:
    return Palettize.model_validate(
        {"nbits": nbits, "granularity": "per_grouped_channel", "group_size": group}
    )


DEFAULT: Menu = MappingProxyType(
    {
        "4-bit k-means g16": _kmeans(4, 16),
        "4-bit k-means g4": _kmeans(4, 4),
        "6-bit k-means g16": _kmeans(6, 16),
        "6-bit k-means g4": _kmeans(6, 4),
        "int8 per channel": Linear(),
        "8-bit k-means g16": _kmeans(8, 16),
    }
)
"""What is tried unless the manifest or `--menu` says otherwise."""


def menu_of(own: Menu, file: Path | None) -> Menu:
    """The settings to choose from: the file's, else the manifest's own, else the default.

    Raises:
        ManifestError: the file cannot be read, or a setting in it is wrong; or the menu has
            fewer than two settings, or one with exceptions of its own.
    """
    menu = _read(file) if file else own or DEFAULT
    where = str(file) if file else "menu"
    if len(menu) < 2:
        raise ManifestError(f"{where}: a menu needs at least two settings to choose from; add one.")
    for name, setting in menu.items():
        if setting.keep or setting.overrides:
            raise ManifestError(
                f"{where}: {name!r} has keep or overrides; a setting of a menu is for any weight, "
                "so leave them out (the model's own compression.keep is kept)."
            )
    return menu


def _read(file: Path) -> Menu:
    try:
        tables = loads(file.read_bytes().decode("utf-8-sig"))
    except OSError as error:
        raise ManifestError(f"--menu {file} cannot be read: {error.strerror}.") from None
    except (TOMLDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ManifestError(f"--menu {file}: not valid TOML: {error}.") from None
    return {name: _setting(file, name, table) for name, table in tables.items()}


def _setting(file: Path, name: str, table: object) -> Settings:
    adapter: TypeAdapter[Settings] = TypeAdapter(Compression)
    try:
        return adapter.validate_python(table)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        key = ".".join(map(str, first["loc"]))
        raise ManifestError(
            f"--menu {file}: {name!r}: {f'{key}: ' if key else ''}{first['msg']}."
        ) from None
