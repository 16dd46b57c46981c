"""How weights are compressed: the passes of `coremltools.optimize.coreml`, named as there.

Which of them coremltools 9.0 joins is checked here too.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from fnmatch import fnmatchcase
from typing import Annotated, Any, Literal, TypeAlias

from pydantic import BeforeValidator, ConfigDict, Field, Strict, ValidationError, model_validator
from pydantic_core import PydanticCustomError

from pytest_ane.manifest.base import CoremlRecord, misplaced
from pytest_ane.manifest.problems import said, unknown


def _whole(value: object) -> object:
    """`Literal[1]` alone would take `true` and `1.0`, which equal 1 in Python."""
    if isinstance(value, bool | float):
        raise ValueError("must be a whole number")
    return value


Nbits = Annotated[Literal[1, 2, 3, 4, 6, 8], BeforeValidator(_whole)]
Positive = Annotated[int, Field(ge=1)]
Threshold = Annotated[int, Field(ge=0)]
Share = Annotated[float, Field(ge=0, le=1)]
NotNegative = Annotated[float, Field(ge=0)]
Ratio = Annotated[tuple[Positive, Positive], Strict(False)]
Glob = Annotated[str, Field(min_length=1)]
OpType = Literal[
    "add", "batch_norm", "concat", "conv", "conv_transpose", "einsum", "gather",
    "gather_along_axis", "gather_nd", "gru", "instance_norm", "layer_norm", "linear", "lstm",
    "matmul", "maximum", "minimum", "mul", "pow", "real_div", "rnn",
    "scaled_dot_product_attention", "select", "sub", "transpose",
]  # fmt: skip
"""Operations of MIL that may take a weight."""


class Override(CoremlRecord):
    """Other settings for the weights that a glob or an operation names; the rest is inherited.

    Any key of the method may stand here.
    """

    model_config = ConfigDict(extra="allow")

    weights: Glob | None = None
    """Glob over weight names as the converted program has them, such as `gate_proj*`."""
    op_type: OpType | None = None
    """The operation that takes the weight, such as `conv`; an entry has this or `weights`."""
    method: Literal["palettize", "linear", "prune", "none"] | None = None
    """Another method; then nothing is inherited. `none` leaves these weights fp16."""

    @model_validator(mode="after")
    def _one_selector(self) -> Override:
        if (self.weights is None) == (self.op_type is None):
            raise ValueError("give either weights or op_type")
        return self

    def given(self) -> dict[str, Any]:
        """The settings this entry names, by key."""
        return self.model_dump(exclude={"weights", "op_type"}, exclude_none=True)


class Method(CoremlRecord):
    """What every method has: weights left alone on purpose, and exceptions."""

    keep: Annotated[tuple[Glob, ...], Strict(False)] = ()
    """Globs of weight names that stay fp16 on purpose, such as `*router*`."""
    overrides: Annotated[tuple[Override, ...], Strict(False)] = ()
    """Other settings for some weights. One that names the weight wins over one that names its
    operation; of several such the last decides alone."""

    @property
    def steps(self) -> tuple[Step, ...]:
        """What is done to a weight, in order."""
        return ()

    def for_weight(self, name: str, op_types: Collection[str] = ()) -> Settings:
        """The settings of one weight, `keep` and `overrides` applied; it has neither itself.

        `name` is as the converted program has it, `op_types` are the operations that take it.
        """
        if any(fnmatchcase(name, glob) for glob in self.keep):
            return Uncompressed()
        last = self.overrides[::-1]
        named = (o for o in last if o.weights and fnmatchcase(name, o.weights))
        typed = (o for o in last if o.op_type in op_types)
        return self._under(next(named, None) or next(typed, None))

    def every(self) -> Iterator[Settings]:
        """All settings some weight may get: the method's own, then each override's."""
        yield self._under(None)
        yield from (self._under(override) for override in self.overrides)

    def _under(self, override: Override | None) -> Settings:
        own = self.model_dump(exclude={"keep", "overrides"})
        changed = override.given() if override else {}
        method = changed.get("method", own["method"])
        if any(way in changed for way in WAYS):
            own = {key: value for key, value in own.items() if key not in WAYS}
        inherited = own if method == own["method"] else {}
        settings = _KINDS[method].model_validate(inherited | changed)
        assert isinstance(settings, Palettize | Linear | Prune | Uncompressed)
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


class Compressing(Method):
    """A method that compresses, and what is done to its result in turn."""

    joint: Joint = ()
    """Joint compression: further methods for the result, in order, such as `palettize` after
    `prune`."""
    weight_threshold: Threshold = 2048
    """Weights with at most this many elements stay as they are."""

    @property
    def steps(self) -> tuple[Step, ...]:
        """What is done to a weight, in order: the method itself, then `joint`."""
        assert isinstance(self, Palettize | Linear | Prune)
        return (self, *self.joint)

    @model_validator(mode="after")
    def _joinable(self) -> Compressing:
        for index, step in enumerate(self.joint):
            for key in ("keep", "overrides", "joint"):
                if getattr(step, key):
                    raise misplaced(("joint", index, key), "belongs to the method itself")
        order = " then ".join(step.method for step in self.steps)
        if self.joint and order not in _JOINT:
            known = "; ".join(sorted(_JOINT))
            raise misplaced(("joint",), f"{order} cannot be done jointly; what can is {known}")
        return self


class Palettize(Compressing):
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


class Linear(Compressing):
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

    @property
    def nbits(self) -> int:
        """Bits of a stored integer: 4 or 8."""
        return int(self.dtype.lstrip("uint"))


class Prune(Compressing):
    """Small weights become zero and are not stored (`constexpr_sparse_to_dense`)."""

    method: Literal["prune"] = "prune"
    """Zeros that are not stored: a mask and the other values."""
    target_sparsity: Share | None = None
    """Share of weights to set to zero, the smallest first."""
    n_m_ratio: Ratio | None = None
    """`[n, m]`: of every m weights along the input channels, the n smallest become zero."""
    threshold: NotNegative | None = None
    """Weights up to this magnitude become zero, where at least half of them are."""

    @model_validator(mode="after")
    def _one_way(self) -> Prune:
        """Two of coremltools 9.0's classes, `OpMagnitude-` and `OpThresholdPrunerConfig`."""
        if sum(getattr(self, key) is not None for key in WAYS) != 1:
            raise misplaced((), f"needs exactly one of {', '.join(WAYS)}")
        if self.n_m_ratio is not None and self.n_m_ratio[0] > self.n_m_ratio[1]:
            raise misplaced(("n_m_ratio",), "must be [n, m] with n at most m")
        return self


WAYS = ("target_sparsity", "n_m_ratio", "threshold")
"""The three ways to choose the weights that become zero."""


class Uncompressed(Method):
    """No compression: weights stay fp16."""

    method: Literal["none"] = "none"
    """No compression."""


Step: TypeAlias = Palettize | Linear | Prune
_BY_METHOD = Field(discriminator="method")
Joint: TypeAlias = Annotated[tuple[Annotated[Step, _BY_METHOD], ...], Strict(False)]
Settings: TypeAlias = Step | Uncompressed
Compression: TypeAlias = Annotated[Settings, _BY_METHOD]

_KINDS: dict[str, type[Method]] = {
    "palettize": Palettize, "linear": Linear, "prune": Prune, "none": Uncompressed,
}  # fmt: skip
_JOINT = {
    *(f"prune then {rest}" for rest in ("palettize", "linear", "palettize then linear")),
    *(f"palettize then {rest}" for rest in ("linear", "prune", "prune then linear")),
    *(f"linear then {rest}" for rest in ("palettize", "prune")),
}
"""What coremltools 9.0 does jointly (`_validate_child_constexpr_for_compress` and the three
`transform_op` in optimize/coreml/_quantization_passes.py); of any other order it fails at the last
step or leaves it out without a word."""


def _of_override(index: int, override: Override, error: ValidationError) -> PydanticCustomError:
    """The first thing wrong with an override, placed at its own key where it names one."""
    first = error.errors(include_url=False)[0]
    path = (*first["loc"], *first.get("ctx", {}).get("path", ()))
    key = path[-1:] if path and path[-1] in override.given() else ()
    message = said(first)
    if first["type"] == "extra_forbidden":
        owner = next((name for name, kind in _KINDS.items() if path[-1] in kind.model_fields), "")
        message = f"belongs to method = {owner!r}" if owner else unknown(str(path[-1]), Palettize)
    return misplaced(("overrides", index, *key), message)


def setting_keys(setting: Settings) -> dict[str, Any]:
    """Settings as manifest keys: method, mode and bits, then non-default values."""
    dumped = setting.model_dump(mode="json")
    keys = ["method", *(("mode", "nbits", "group_size") if setting.method == "palettize" else ())]
    changed = setting.model_dump(mode="json", exclude_defaults=True)
    last = {key: changed.pop(key) for key in ("keep", "overrides") if key in changed}
    return {key: dumped[key] for key in keys} | changed | last


def override_keys(setting: Settings, main: Settings) -> dict[str, Any]:
    """The keys of an override in a table with the settings `main`: those that differ."""
    if setting.method != main.method:
        return setting_keys(setting)
    mine, other = setting.model_dump(mode="json"), main.model_dump(mode="json")
    return {key: value for key, value in mine.items() if value != other[key]}
