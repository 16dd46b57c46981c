"""`pytest-ane init --from`: a manifest of a model that somebody has, right the first time."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from pytest_ane.make.cache import default_root
from pytest_ane.manifest import SourceTable, parse
from pytest_ane.mlprogram.digests import file_digest
from pytest_ane.mlprogram.errors import SourceError
from pytest_ane.mlprogram.text import printable
from pytest_ane.models.sources import source_path
from pytest_ane.models.sources.checkpoint import OnlyGGUFError
from pytest_ane.models.sources.identity import locate_snapshot
from pytest_ane.tools._scaffold import compression, prompts
from pytest_ane.tools._scaffold.shapes import describe
from pytest_ane.tools._scaffold.sizes import Sizes, budgets, measure
from pytest_ane.tools._scaffold.text import manifest_text, quoted

__all__ = ["Scaffold", "scaffold"]

_REPOSITORY = re.compile(r"([\w.-]+/[\w.-]+)(?:@([\w.-]+))?(?:/([\w./-]+\.gguf))?")
"""A repository, `@` a branch, tag or commit, and a file, as in the paths of `HfFileSystem`:
https://huggingface.co/docs/huggingface_hub/guides/hf_file_system."""
_NAME_ONE = (
    "name a folder of safetensors with its config.json, a GGUF file, or a repository of the "
    "Hugging Face cache, as Qwen/Qwen3-0.6B."
)


@dataclass(frozen=True)
class Scaffold:
    """A manifest to be written.

    Attributes:
        text: of `shards.toml`.
        shards: their ids, in running order.
        positions: that behaviour judges.
        judged: the same in words; of an encoder, texts.
        notes: what is unusual about the prompts.
        sizes: what it takes.
    """

    text: str
    family: str
    shards: tuple[str, ...]
    positions: int
    judged: str
    notes: tuple[str, ...]
    sizes: Sizes

    def lines(self) -> Iterator[str]:
        """What a reader wants to know of it, and what to run."""
        count = len(self.shards)
        yield f"family {self.family}, {count} shards; behaviour judges {self.judged}"
        yield from self.notes
        yield from self.sizes.lines()
        yield f"next: pytest --ane-shards={self.shards[0]} -m gate"
        yield "then: pytest --ane-shards=all -m gate"

    @property
    def facts(self) -> dict[str, Any]:
        """The same as data."""
        return {
            "family": self.family,
            "positions": self.positions,
            "notes": self.notes,
            "shards": self.sizes.by_shard,
            "states": self.sizes.states,
            "disk": self.sizes.disk,
            "memory": self.sizes.memory,
        }


def scaffold(source: str, manifest: Path, cache: Path | None = None) -> Scaffold:
    """A manifest of a model: a folder or file of safetensors, a GGUF file, or a hub's repository.

    Args:
        source: its path, or `Qwen/Qwen3-0.6B`, or a file of such a repository,
            `ggml-org/gemma-3-270m-GGUF/gemma-3-270m-Q8_0.gguf`; of the local Hugging Face cache,
            the branch `main` unless `@` and a revision follow the repository.
        manifest: where the manifest will be; nothing is written.
        cache: the cache folder; None for the user's own.

    Raises:
        SourceError: the source is missing, broken, of no family of ours, or of a variant that its
            family refuses.
        ManifestError: the source's name cannot stand in a manifest.
    """
    table, name = _find(source)
    where = _toml(table, manifest.parent)
    model = describe(table, name)
    golden = prompts.choose(model)
    scheme = compression.choose(model.shards)
    text = partial(manifest_text, model, where, scheme, golden)
    # The limits follow from sizes, and these from the compression as the manifest has it.
    unlimited = parse(text(()), manifest).models[0]
    sizes = measure(model.shards, unlimited, cache or default_root())
    limited = text(budgets(model.shards, sizes.by_shard))
    parse(limited, manifest)
    texts, positions = len(golden.prompts), golden.positions
    judged = f"{texts} texts" if model.is_encoder else f"{positions} positions"
    notes = tuple(golden.notes())
    return Scaffold(limited, model.family, model.cut.shards, positions, judged, notes, sizes)


def _find(source: str) -> tuple[SourceTable, Path]:
    """Where the model that somebody names is, and the file or folder by its own name.

    A repository is pinned to the commit that the cache has.
    """
    path = Path(source).expanduser()
    try:
        there = path.exists()
    except (OSError, ValueError):  # Too long a name, or a NUL in it.
        there = False
    if not source:
        raise SourceError(f"--from names nothing; {_NAME_ONE}")
    if there:
        return SourceTable(path=path.absolute()), path.absolute()
    if not (parts := _REPOSITORY.fullmatch(source)):
        raise SourceError(
            f"{printable(source)}: no such file or folder; check the path, or {_NAME_ONE}"
        )
    hub, revision, file = parts.groups()
    try:
        snapshot = locate_snapshot(hub, revision, file)
    except OnlyGGUFError as error:
        names = ", ".join(f"{source}/{name}" for name in error.files)
        raise SourceError(f"{source}: a repository of GGUF files; name one: {names}.") from error
    except SourceError as error:
        why = str(error).replace("; run: ", "; check the path, or run: ")
        raise SourceError(f"{source}: no such file or folder, and {why}") from error
    return SourceTable(hub=hub, revision=snapshot.name, file=file), Path(hub, file or "")


def _toml(table: SourceTable, folder: Path) -> str:
    """A source as the manifest has it: a path is relative where it is below the folder."""
    file, folder = source_path(table), folder.absolute()
    keys = table.model_dump(include={"hub", "revision", "file"}, exclude_none=True)
    if table.path is not None:
        path = file.relative_to(folder).as_posix() if file.is_relative_to(folder) else str(file)
        # No manifest may say ".", which is what an empty path is.
        keys = {"path": f"../{folder.resolve().name}" if path == "." else path}
    if file.is_file() and file.suffix != ".json":
        keys["sha256"] = file_digest(file)
    return f"{{ {', '.join(f'{key} = {quoted(value)}' for key, value in keys.items())} }}"
