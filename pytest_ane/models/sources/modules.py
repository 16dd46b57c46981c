"""How sentence-transformers makes an embedding of hidden states: `modules.json` and its folders."""

from __future__ import annotations

import json
from pathlib import Path, PurePosixPath
from typing import Any

from pytest_ane.mlprogram.errors import SourceError
from pytest_ane.models.sources.checkpoint import MODULES, read_json

_MODE = "pooling_mode"


def read_modules(folder: Path) -> dict[str, Any]:
    """`{"sentence_transformers": {"pooling": "mean", "normalize": true, "others": []}}`.

    `pooling` is what `1_Pooling/config.json` names, such as `mean`, `cls` or `max`, several joined
    by `+`; `others` are modules besides transformer, pooling and normalization. Empty where the
    folder has no `modules.json`.

    Raises:
        SourceError: the files are damaged, or one is missing.
    """
    if not (folder / MODULES).is_file():
        return {}
    modules = {kind: path for path, kind in _modules(folder)}
    table: dict[str, Any] = {
        "normalize": "Normalize" in modules,
        "others": [k for k in modules if k not in ("Transformer", "Pooling", "Normalize")],
    }
    if "Pooling" in modules:
        table["pooling"] = _pooling(read_json(folder / modules["Pooling"] / "config.json"))
    return {"sentence_transformers": table}


def module_files(folder: Path) -> list[str]:
    """The files that `read_modules` reads, relative to the folder."""
    if not (folder / MODULES).is_file():
        return []
    return [MODULES, *(f"{path}/config.json" for path, kind in _modules(folder) if path)]


def _modules(folder: Path) -> list[tuple[str, str]]:
    """Each module's folder, and its class."""
    file = folder / MODULES
    try:
        entries = json.loads(file.read_bytes())
        if not isinstance(entries, list):
            raise TypeError("no list")
        modules = [(str(entry["path"]), str(entry["type"])) for entry in entries]
    except (OSError, ValueError, RecursionError, TypeError, KeyError) as error:
        raise SourceError(
            f"{file}: no list of sentence-transformers' modules ({error!r:.100}); fetch it again."
        ) from error
    for path, _ in modules:
        if path and (PurePosixPath(path).is_absolute() or ".." in PurePosixPath(path).parts):
            raise SourceError(f"{file}: names {path!r:.100}, which is not below its folder.")
    return [(path, kind.rpartition(".")[2]) for path, kind in modules]


def _pooling(config: dict[str, Any]) -> str:
    """`pooling_mode`, as newer files have it, or the flags that are set: `_mean_tokens`."""
    if isinstance(config.get(_MODE), str):
        return str(config[_MODE])
    flags = [key for key in config if key.startswith(f"{_MODE}_") and config[key] is True]
    names = [key.removeprefix(f"{_MODE}_").removesuffix("_tokens") for key in flags]
    return "+".join(name.removesuffix("_token") for name in names) or "none"
