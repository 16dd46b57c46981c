"""How weights are compressed; keys and values named as `coremltools.optimize.coreml` names them."""

from __future__ import annotations

from collections.abc import Iterator
from fnmatch import fnmatchcase
from typing import Annotated, Any, Literal, TypeAlias

from pydantic import BeforeValidator, Field, Strict, ValidationError, model_validator
from pydantic_core import PydanticCustomError

from pytest_ane.manifest.base import CoremlRecord, misplaced, one_of


def _whole(value: object) -> object:
    """`Literal[1]` alone would take `true` and `1.0`, which equal 1 in Python."""
    if isinstance(value, bool | float):
        raise ValueError("must be a whole number")
    return value


Glob = Annotated[str, Field(min_length=1)]
Nbits = Annotated[Literal[1, 2, 3, 4, 6, 8], BeforeValidator(_whole)]
Positive = Annotated[int, Field(ge=1)]
Threshold = Annotated[int, Field(ge=0)]


class Override(CoremlRecord):
    """Other settings for the weights that a glob names; keys left out are inherited."""

    weights: Glob
    """Glob over weight names as the converted program has them, such as `gate_proj*`."""
    method: Literal["palettize", "linear", "none"] | None = None
    """Another method; then nothing is inherited. `none` leaves these weights fp16."""
    mode: Literal["kmeans", "uniform", "unique", "linear_symmetric", "linear"] | None = None
    """As in the method."""
    engine: Literal["fast", "coremltools"] | None = None
    """As in `palettize`."""
    nbits: Nbits | None = None
    """As in `palettize`."""
    granularity: Literal["per_tensor", "per_grouped_channel", "per_channel", "per_block"] | None = (
        None
    )
    """As in the method."""
    group_size: Positive | None = None
    """As in `palettize`."""
    cluster_dim: Positive | None = None
    """As in `palettize`."""
    enable_per_channel_scale: bool | None = None
    """As in `palettize`."""
    dtype: Literal["int4", "uint4", "int8", "uint8"] | None = None
    """As in `linear`."""
    block_size: Positive | None = None
    """As in `linear`."""
    weight_threshold: Threshold | None = None
    """As in the method."""

    def given(self) -> dict[str, Any]:
        """The settings this entry names, by key."""
        return self.model_dump(exclude={"weights"}, exclude_none=True)


class Method(CoremlRecord):
    """What every method has: weights left alone on purpose, and exceptions."""

    keep: Annotated[tuple[Glob, ...], Strict(False)] = ()
    """Globs of weight names that stay fp16 on purpose, such as `*router*`."""
    overrides: Annotated[tuple[Override, ...], Strict(False)] = ()
    """Other settings for some weights; the last one that matches a weight decides."""

    def for_weight(self, name: str) -> Palettize | Linear | Uncompressed:
        """The settings of one weight, `keep` and `overrides` applied; it has neither itself."""
        if any(fnmatchcase(name, glob) for glob in self.keep):
            return Uncompressed()
        for override in reversed(self.overrides):
            if fnmatchcase(name, override.weights):
                return self._under(override)
        return self._under(None)

    def every(self) -> Iterator[Palettize | Linear | Uncompressed]:
        """All settings some weight may get: the method's own, then each override's."""
        yield self._under(None)
        yield from (self._under(override) for override in self.overrides)

    def _under(self, override: Override | None) -> Palettize | Linear | Uncompressed:
        own = self.model_dump(exclude={"keep", "overrides"})
        given = override.given() if override else {}
        method = given.get("method", own["method"])
        settings = _KINDS[method].model_validate(given if method != own["method"] else own | given)
        assert isinstance(settings, Palettize | Linear | Uncompressed)
        return settings

    @model_validator(mode="after")
    def _overrides_fit(self) -> Method:
        try:
            if self.overrides:
                self._under(None)
        except ValidationError:
            return self  # Said once, by the method's own validator, not again by every override.
        for index, override in enumerate(self.overrides):
            try:
                self._under(override)
            except ValidationError as error:
                raise _of_override(index, override, error) from None
        return self


class Palettize(Method):
    """Weights become indices into small tables (`constexpr_lut_to_dense`)."""

    method: Literal["palettize"] = "palettize"
    """Palettes: every weight becomes an index into a small table of values."""
    mode: Literal["kmeans", "uniform", "unique"] = "kmeans"
    """How the tables are found: by k-means, evenly spaced, or from the distinct values where
    these are few enough (`unique` finds the number of bits itself and does not use `nbits`)."""
    engine: Literal["fast", "coremltools"] = "fast"
    """Who finds the tables: `fast` is our own engine, which writes what coremltools would; vectors
    and scales per channel go through coremltools in any case."""
    nbits: Nbits = 4
    """Bits of an index; a table has 2^nbits entries."""
    granularity: Literal["per_tensor", "per_grouped_channel"] = "per_grouped_channel"
    """One table for a weight, or one for each group of output channels."""
    group_size: Positive = 32
    """Output channels that share a table, for `per_grouped_channel`."""
    cluster_dim: Positive = 1
    """Length of a table's entries; more than 1 is vector palettization."""
    enable_per_channel_scale: bool = False
    """Scale output channels before palettization."""
    weight_threshold: Threshold = 2048
    """Weights with at most this many elements stay as they are."""

    @model_validator(mode="after")
    def _vectors_fit(self) -> Palettize:
        """What coremltools 9.0 (`palettize_weights`) refuses only after minutes of work."""
        if self.cluster_dim > 1 and self.mode == "uniform":
            raise misplaced(("cluster_dim",), "must be 1 with mode = 'uniform', or use 'kmeans'")
        grouped = self.granularity == "per_grouped_channel"
        if grouped and self.group_size % self.cluster_dim:
            raise misplaced(("cluster_dim",), f"must divide group_size = {self.group_size}")
        return self


class Linear(Method):
    """Weights become integers with scales (`constexpr_blockwise_shift_scale`)."""

    method: Literal["linear"] = "linear"
    """Integers with scales."""
    mode: Literal["linear_symmetric", "linear"] = "linear_symmetric"
    """Without or with an offset."""
    dtype: Literal["int4", "uint4", "int8", "uint8"] = "int8"
    """Type of the stored integers."""
    granularity: Literal["per_tensor", "per_channel", "per_block"] = "per_channel"
    """What shares a scale; `per_block` keeps small shards off the ANE (rule R064)."""
    block_size: Positive = 32
    """Input channels of a block, for `per_block`."""
    weight_threshold: Threshold = 2048
    """Weights with at most this many elements stay as they are."""


class Uncompressed(Method):
    """Weights stay fp16."""

    method: Literal["none"] = "none"
    """No compression."""


Compression: TypeAlias = Annotated[Palettize | Linear | Uncompressed, Field(discriminator="method")]

_KINDS: dict[str, type[Method]] = {
    "palettize": Palettize,
    "linear": Linear,
    "none": Uncompressed,
}


def beyond(settings: Palettize | Linear | Uncompressed, target: str) -> str | None:
    """The setting that a deployment target before iOS 18 does not know; `None` where all fits.

    Source: coremltools 9.0, `optimize/coreml/_quantization_passes.py`, the two `transform_op`.
    """
    if target not in ("iOS16", "iOS17") or isinstance(settings, Uncompressed):
        return None
    new: dict[str, Any] = {"granularity": ("per_grouped_channel", "per_block")}
    if isinstance(settings, Palettize):
        new |= {
            "enable_per_channel_scale": (True,),
            "nbits": (3,) if settings.mode != "unique" else (),
        }
        if settings.cluster_dim > 1:
            return f"cluster_dim = {settings.cluster_dim}"
    else:
        new |= {"dtype": ("int4", "uint4")}
    for key, values in new.items():
        if (value := getattr(settings, key)) in values:
            return f"{key} = {str(value).lower()}"
    return None


def _of_override(index: int, override: Override, error: ValidationError) -> PydanticCustomError:
    """The first thing wrong with an override, placed at its own key where it names one."""
    first = error.errors(include_url=False)[0]
    context = first.get("ctx", {})
    path = (*first["loc"], *context.get("path", ()))
    key = path[-1:] if path and path[-1] in override.model_fields_set else ()
    says = str(context.get("says", first["msg"]))
    if first["type"] == "extra_forbidden":
        owner = next(name for name, kind in _KINDS.items() if path[-1] in kind.model_fields)
        says = f"belongs to method = {owner!r}; name that method here, or leave the key out"
    elif first["type"] == "literal_error":
        says = one_of(context["expected"])
    return misplaced(("overrides", index, *key), says)
