"""The files of a published checkpoint: weights in one file or several with an index, and JSON."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from pytest_ane.mlprogram.errors import SourceError

INDEX = "model.safetensors.index.json"
SINGLE = "model.safetensors"
COMPANIONS = ("config.json", "tokenizer.json", "tokenizer_config.json", "chat_template.jinja")
"""Files that say what the weights mean, in the checkpoint's folder."""
MODULES = "modules.json"
"""What sentence-transformers does with hidden states, in the checkpoint's folder."""

_ADAPTER = "adapter_config.json"
_LONGEST = 1 << 28
_PICKLES = (".bin", ".pt", ".pth", ".ckpt", ".pkl")


class IncompleteError(SourceError):
    """Files of a checkpoint are not there."""


class OnlyGGUFError(SourceError):
    """A folder has GGUF files in place of a checkpoint.

    Attributes:
        files: relative to the folder.
    """

    def __init__(self, folder: Path, files: Sequence[str]) -> None:
        super().__init__(f"{folder}: a folder of GGUF files; name one: {', '.join(files)}.")
        self.files = files


@dataclass(frozen=True)
class Checkpoint:
    """The files of a checkpoint, all of them there.

    Attributes:
        path: what the manifest names: a folder, an index or a file.
        folder: where `config.json` and the tokenizer are.
        files: the safetensors files, relative to the folder.
        index: the file of every tensor; `None` where there is one file and no index.
    """

    path: Path
    folder: Path
    files: tuple[str, ...]
    index: Mapping[str, str] | None = None

    @classmethod
    def find(cls, path: Path) -> Checkpoint:
        """Find a checkpoint's files.

        Raises:
            SourceError: there are none, one that the index names is missing, or they are pickles.
        """
        if path.is_dir():
            return cls._in_folder(path)
        refuse_pickle(path)
        if not path.is_file():
            raise SourceError(f"{path}: no such file or folder; check the source in shards.toml.")
        if path.suffix == ".json":
            return cls._of_index(path, path)
        _refuse_adapter(path.parent)
        return cls(path, path.parent, (path.name,))

    @classmethod
    def _in_folder(cls, folder: Path) -> Checkpoint:
        if (folder / INDEX).is_file():
            return cls._of_index(folder, folder / INDEX)
        if (folder / SINGLE).is_file():
            return cls(folder, folder, (SINGLE,))
        for file in sorted(folder.iterdir()):
            refuse_pickle(file)
        _refuse_adapter(folder)
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
    def _of_index(cls, path: Path, index: Path) -> Checkpoint:
        names = read_json(index).get("weight_map")
        if not isinstance(names, dict) or not names:
            raise SourceError(
                f"{index}: no index of safetensors files, for it has no table 'weight_map'; name "
                "the folder of the checkpoint."
            )
        for file in names.values():
            _check_name(index, file)
        files = tuple(dict.fromkeys(names.values()))
        for file in files:
            _check_file(index, file)
        return cls(path, index.parent, files, names)


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
            f"{folder}: an adapter, which holds changes of a base model only; merge it into that "
            "(PEFT's merge_and_unload), save the whole model, and name its folder."
        )


def refuse_pickle(path: Path) -> None:
    """Raise `SourceError` for PyTorch's pickled weights."""
    if path.name.removesuffix(".index.json").endswith(_PICKLES):
        raise SourceError(
            f"{path}: a pickle, and reading a pickle runs whatever code it holds; save the weights "
            "with safetensors.torch.save_file, or use a checkpoint that has safetensors."
        )


def _check_name(index: Path, file: object) -> None:
    """What an index names is a name in the index's folder."""
    plain = isinstance(file, str) and PurePosixPath(file).name == file and "\\" not in file
    if not plain or file in ("", ".."):
        raise SourceError(f"{index}: names the file {file!r:.100}, which is no name in its folder.")


def _check_file(index: Path, file: str) -> None:
    """A file that an index names is there."""
    refuse_pickle(index.parent / file)
    try:
        there = (index.parent / file).is_file()
    except OSError:  # Too long a name for any file.
        there = False
    if not there:
        raise IncompleteError(
            f"{index}: names {file:.100}, which is not there; fetch the missing file."
        )
