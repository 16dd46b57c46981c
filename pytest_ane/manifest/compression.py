"""How weights are compressed; keys and values named as `coremltools.optimize.coreml` names them."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from fnmatch import fnmatchcase
from typing import Annotated, Any, Literal, TypeAlias

from pydantic import ConfigDict, Field, Strict, ValidationError, model_validator
from pydantic_core import PydanticCustomError

from pytest_ane.manifest.base import CoremlRecord, misplaced, one_of
from pytest_ane.manifest.steps import (
    PRUNING,
    WAYS,
    Axis,
    Joint,
    LinearStep,
    Nbits,
    NotNegative,
    PalettizeStep,
    Positive,
    PruneStep,
    Ratio,
    Share,
    Step,
    Threshold,
    joint_error,
)

Glob = Annotated[str, Field(min_length=1)]
OpType = Literal[
    "add", "batch_norm", "concat", "conv", "conv_transpose", "einsum", "gather",
    "gather_along_axis", "gather_nd", "gru", "instance_norm", "layer_norm", "linear", "lstm",
    "matmul", "maximum", "minimum", "mul", "pow", "real_div", "rnn",
    "scaled_dot_product_attention", "select", "sub", "transpose",
]  # fmt: skip
"""Operations of MIL that may take a weight."""


class Override(CoremlRecord):
    """Other settings for the weights that a glob or an operation names; the rest is inherited."""

    model_config = ConfigDict(
        json_schema_extra={"oneOf": [{"required": [key]} for key in ("weights", "op_type")]}
    )

    weights: Glob | None = None
    """Glob over weight names as the converted program has them, such as `gate_proj*`."""
    op_type: OpType | None = None
    """The operation that takes the weight, such as `conv`; an entry has this or `weights`."""
    method: Literal["palettize", "linear", "prune", "none"] | None = None
    """Another method; then nothing is inherited. `none` leaves these weights fp16."""
    joint: Annotated[tuple[Joint, ...], Strict(False)] | None = None
    """As in the method; `[]` for none."""
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
    """As in the method."""
    target_sparsity: Share | None = None
    """As in `prune`; in place of any other way to choose the weights that become zero."""
    n_m_ratio: Ratio | None = None
    """As `target_sparsity`."""
    dim: Axis | None = None
    """As in `prune`."""
    threshold: NotNegative | None = None
    """As `target_sparsity`."""
    minimum_sparsity_percentile: Share | None = None
    """As in `prune`."""
    weight_threshold: Threshold | None = None
    """As in the method."""

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

        Args:
            name: as the converted program has it.
            op_types: the operations that take it.
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
            own = {key: value for key, value in own.items() if key not in PRUNING}
        settings = _KINDS[method].model_validate(
            changed if method != own["method"] else own | changed
        )
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


class JointMethod(Method):
    """A method that compresses, and what is done to its result in turn."""

    joint: Annotated[tuple[Joint, ...], Strict(False)] = ()
    """Joint compression: further methods for the result, in order, such as `palettize` after
    `prune`."""

    @property
    def steps(self) -> tuple[Step, ...]:
        """What is done to a weight, in order: the method itself, then `joint`."""
        assert isinstance(self, Step)
        return (self, *self.joint)

    @model_validator(mode="after")
    def _joinable(self) -> JointMethod:
        if (message := joint_error(self.steps)) is not None:
            raise misplaced(("joint",), message)
        return self


class Palettize(PalettizeStep, JointMethod):
    """Weights become indices into small tables (`constexpr_lut_to_dense`)."""


class Linear(LinearStep, JointMethod):
    """Weights become integers with scales (`constexpr_blockwise_shift_scale`)."""


class Prune(PruneStep, JointMethod):
    """Small weights become zero and are not stored (`constexpr_sparse_to_dense`)."""


class Uncompressed(Method):
    """No compression: weights stay fp16."""

    method: Literal["none"] = "none"
    """No compression."""


Settings: TypeAlias = Palettize | Linear | Prune | Uncompressed
Compression: TypeAlias = Annotated[Settings, Field(discriminator="method")]

_KINDS: dict[str, type[Method]] = {
    "palettize": Palettize,
    "linear": Linear,
    "prune": Prune,
    "none": Uncompressed,
}


def _of_override(index: int, override: Override, error: ValidationError) -> PydanticCustomError:
    """The first thing wrong with an override, placed at its own key where it names one."""
    first = error.errors(include_url=False)[0]
    context = first.get("ctx", {})
    path = (*first["loc"], *context.get("path", ()))
    key = path[-1:] if path and path[-1] in override.model_fields_set else ()
    message = str(context.get("message", first["msg"]))
    if first["type"] == "extra_forbidden":
        owner = next(name for name, kind in _KINDS.items() if path[-1] in kind.model_fields)
        message = f"belongs to method = {owner!r}; name that method here, or leave the key out"
    elif first["type"] == "literal_error":
        message = one_of(context["expected"])
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
