"""Models and shards as the manifest describes them, defaults and overrides resolved."""

from __future__ import annotations

from functools import cached_property
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, model_validator

from pytest_ane.manifest.base import Record
from pytest_ane.manifest.compression import Compression, Uncompressed
from pytest_ane.manifest.policy import Policy

Target = Literal["iOS16", "iOS17", "iOS18"]


class Source(Record):
    """Where weights come from: a file, or a file inside an installed package."""

    path: Path | None = None
    """A GGUF file, relative to the manifest."""
    package: str | None = None
    """An installed distribution that carries the file."""
    file: str | None = None
    """The file's name inside the package."""
    sha256: Annotated[str, Field(pattern="^[0-9a-f]{64}$")] | None = None
    """The file's expected digest; another one is an error."""

    @model_validator(mode="after")
    def _one_place(self) -> Source:
        if (self.path is None) == (self.package is None) or bool(self.file) != bool(self.package):
            raise ValueError("give either path, or package and file")
        return self


class Probes(Record):
    """Inputs on which a shard is compared with its reference."""

    kinds: tuple[Literal["gaussian", "unit-norm", "captured"], ...] = ("gaussian", "captured")
    """`gaussian` has RMS 1, `unit-norm` rows of norm 1, `captured` real hidden states."""
    count: Annotated[int, Field(ge=1, le=64)] = 2
    """Probes of each seeded kind at each length."""
    seed: Annotated[int, Field(ge=0)] = 0
    """Seed of the seeded kinds."""


class Prompt(Record):
    """A golden prompt: exactly one of text, chat and ids."""

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9_.-]+$")]
    """Short name used in messages."""
    text: str | None = None
    """Text as it is."""
    chat: str | None = None
    """A user's message, put into the source's chat template."""
    ids: tuple[Annotated[int, Field(ge=0)], ...] | None = None
    """Token ids."""
    greedy: Annotated[int, Field(ge=0, le=256)] = 10
    """Tokens of greedy continuation to compare."""

    @model_validator(mode="after")
    def _one_form(self) -> Prompt:
        if sum(bool(form) for form in (self.text, self.chat, self.ids)) != 1:
            raise ValueError("give exactly one of text, chat and ids, and not an empty one")
        return self


class Shard(Record):
    """One shard, fully resolved: what the rest of the product works with."""

    model: str
    id: str
    family: str | None = None
    source: Source | None = None
    artifact: Path | None = None
    reference: Literal["float32", "none"] | Path = "float32"
    compression: Compression | None = None
    probes: Probes = Probes()
    policy: Policy = Policy()
    max_tokens: int = 64
    target: Target = "iOS18"

    @property
    def qualified(self) -> str:
        """`smollm2:L01`."""
        return f"{self.model}:{self.id}"

    @property
    def asked(self) -> Compression:
        """The compression, `none` where the manifest names none."""
        return self.compression or Uncompressed(method="none")


class Model(Record):
    """One model: its shards in order and what concerns them all."""

    name: str
    family: str | None = None
    source: Source | None = None
    shards: tuple[Shard, ...]
    prompts: tuple[Prompt, ...] = ()
    policy: Policy = Policy()
    max_tokens: int = 64


class Manifest(Record):
    """All models of a `shards.toml`."""

    path: Path
    models: tuple[Model, ...]

    @cached_property
    def shards(self) -> tuple[Shard, ...]:
        """All shards of all models, in the file's order."""
        return tuple(shard for model in self.models for shard in model.shards)

    def model_of(self, name: str) -> Model:
        """A model by name; `KeyError` if there is none."""
        return {model.name: model for model in self.models}[name]
