"""How weights are compressed; keys and values named as `coremltools.optimize.coreml` names them."""

from __future__ import annotations

from fnmatch import fnmatchcase
from typing import Annotated, Any, Literal, TypeAlias

from pydantic import Field, TypeAdapter, model_validator

from pytest_ane.manifest.base import CoremlRecord

_COMMON = ("keep", "overrides")


class Override(CoremlRecord):
    """Other settings for the weights that a glob names; keys left out are inherited."""

    weights: str
    """Glob over weight names as the converted program has them, such as `gate_proj*`."""
    method: Literal["palettize", "linear", "none"] | None = None
    """Another method; then nothing is inherited."""
    mode: Literal["kmeans", "uniform", "unique", "linear_symmetric", "linear"] | None = None
    """As in the method."""
    engine: Literal["fast", "coremltools"] | None = None
    """As in `palettize`."""
    nbits: Literal[1, 2, 3, 4, 6, 8] | None = None
    """As in `palettize`."""
    granularity: (
        Literal["per_tensor", "per_grouped_channel", "per_channel", "per_block"] | None
    ) = None
    """As in the method."""
    group_size: Annotated[int, Field(ge=1)] | None = None
    """As in `palettize`."""
    cluster_dim: Annotated[int, Field(ge=1)] | None = None
    """As in `palettize`."""
    enable_per_channel_scale: bool | None = None
    """As in `palettize`."""
    dtype: Literal["int4", "uint4", "int8", "uint8"] | None = None
    """As in `linear`."""
    block_size: Annotated[int, Field(ge=1)] | None = None
    """As in `linear`."""
    weight_threshold: Annotated[int, Field(ge=0)] | None = None
    """As in the method."""


class Method(CoremlRecord):
    """What every method has: weights left alone on purpose, and exceptions."""

    keep: tuple[str, ...] = ()
    """Globs of weight names that stay fp16 on purpose, such as `*router*`."""
    overrides: tuple[Override, ...] = ()
    """Other settings for some weights; where several match, later ones win key by key."""

    def for_weight(self, name: str) -> Palettize | Linear | Uncompressed:
        """The settings of one weight, `keep` and `overrides` applied."""
        if any(fnmatchcase(name, glob) for glob in self.keep):
            return Uncompressed(method="none")
        settings = self.model_dump(exclude=set(_COMMON))
        for override in self.overrides:
            if fnmatchcase(name, override.weights):
                settings = _merged(settings, override)
        return _adapter().validate_python(settings)

    @model_validator(mode="after")
    def _overrides_fit(self) -> Method:
        """An override that makes no sense for its method is an error where it stands."""
        settings = self.model_dump(exclude=set(_COMMON))
        for override in self.overrides:
            unknown = _unfit(settings, override)
            if unknown:
                raise ValueError(
                    f"the override of {override.weights!r} sets {', '.join(unknown)}, which its "
                    "method does not have"
                )
            _adapter().validate_python(_merged(settings, override))
        return self


class Palettize(Method):
    """Weights become indices into small tables (`constexpr_lut_to_dense`)."""

    method: Literal["palettize"]
    """Which method."""
    mode: Literal["kmeans", "uniform", "unique"] = "kmeans"
    """How the tables are found."""
    engine: Literal["fast", "coremltools"] = "fast"
    """Who runs k-means: `fast` is our own one-dimensional one, with the same op structure."""
    nbits: Literal[1, 2, 3, 4, 6, 8] = 4
    """Bits of an index; a table has 2^nbits entries."""
    granularity: Literal["per_tensor", "per_grouped_channel"] = "per_grouped_channel"
    """One table for a weight, or one for each group of output channels."""
    group_size: Annotated[int, Field(ge=1)] = 32
    """Output channels that share a table."""
    cluster_dim: Annotated[int, Field(ge=1)] = 1
    """Length of a table's entries; more than 1 is vector palettization."""
    enable_per_channel_scale: bool = False
    """Scale output channels before palettization."""
    weight_threshold: Annotated[int, Field(ge=0)] = 2048
    """Weights with at most this many elements stay as they are."""


class Linear(Method):
    """Weights become integers with scales (`constexpr_blockwise_shift_scale`)."""

    method: Literal["linear"]
    """Which method."""
    mode: Literal["linear_symmetric", "linear"] = "linear_symmetric"
    """Without or with an offset."""
    dtype: Literal["int4", "uint4", "int8", "uint8"] = "int8"
    """Type of the stored integers."""
    granularity: Literal["per_tensor", "per_channel", "per_block"] = "per_channel"
    """What shares a scale; `per_block` keeps small shards off the ANE (rule R064)."""
    block_size: Annotated[int, Field(ge=1)] = 32
    """Input channels of a block, for `per_block`."""
    weight_threshold: Annotated[int, Field(ge=0)] = 2048
    """Weights with at most this many elements stay as they are."""


class Uncompressed(Method):
    """Weights stay fp16."""

    method: Literal["none"]
    """Which method."""


Compression: TypeAlias = Annotated[
    Palettize | Linear | Uncompressed, Field(discriminator="method")
]


def _adapter() -> TypeAdapter[Palettize | Linear | Uncompressed]:
    return TypeAdapter(Compression)


def _given(override: Override) -> dict[str, Any]:
    return override.model_dump(exclude={"weights"}, exclude_none=True)


def _merged(settings: dict[str, Any], override: Override) -> dict[str, Any]:
    given = _given(override)
    replaces = given.get("method", settings["method"]) != settings["method"]
    return given if replaces else {**settings, **given}


def _unfit(settings: dict[str, Any], override: Override) -> list[str]:
    kinds = {"palettize": Palettize, "linear": Linear, "none": Uncompressed}
    known = kinds[override.method or settings["method"]].model_fields
    return [key for key in _given(override) if key not in known]
