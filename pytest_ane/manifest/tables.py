"""The tables as users write them: what `shards.toml` is validated and documented against."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from pytest_ane.manifest.base import Record
from pytest_ane.manifest.compression import Compression
from pytest_ane.manifest.policy import Policy
from pytest_ane.manifest.records import Probes, Prompt, Source, Target

Tokens = Annotated[int, Field(ge=1, le=65536)]
Table = dict[str, Any]


class Common(Record):
    """Keys that a model shares with `[defaults]`."""

    compression: Compression | None = None
    """How weights are compressed; absent: not at all."""
    probes: Probes = Probes()
    """Inputs on which shards are compared with their reference."""
    policy: Policy = Policy()
    """What a shard must reach to pass."""
    max_tokens: Tokens = 64
    """Positions a flexible shard takes at once: T is 1 to this."""
    target: Target = "iOS18"
    """Minimum deployment target of the conversion."""


class Defaults(Common):
    """What every model starts from."""


class ShardTable(Common):
    """Settings of one shard, or of all whose ids match a glob; the rest comes from the model."""

    artifact: str | None = None
    """The user's own `.mlpackage`, relative to the manifest, in place of one that is built."""
    reference: str | None = None
    """`float32` (the family's module), `none` (only that it runs, with finite output), or an
    uncompressed `.mlpackage`."""


class ModelTable(Common):
    """One model: where its weights come from, how it is cut, compressed and judged."""

    family: Literal["llama"] | None = None
    """The architecture; absent for packages of your own."""
    source: Source | None = None
    """Where the weights come from; needed with a family."""
    shards: str | tuple[str, ...] | None = None
    """Shard ids and ranges, such as `"L00-L29, head.0-head.3"`; needed with a family."""
    prompts: tuple[Prompt, ...] = ()
    """Golden prompts."""
    shard: dict[str, ShardTable] = Field(default_factory=dict)
    """Settings by shard id or glob; without a family these tables are the shards."""


class ManifestTable(Record):
    """A `shards.toml`."""

    defaults: Defaults = Defaults()
    """What every model starts from."""
    models: Annotated[dict[str, ModelTable], Field(min_length=1)]
    """Models by name."""
