"""The passes of `coremltools.optimize.coreml`, one record each, keys and values named as there.

Which of them coremltools 9.0 joins, and which a deployment target knows, is checked here too.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Literal, TypeAlias

from pydantic import BeforeValidator, Field, Strict, model_validator

from pytest_ane.manifest.base import CoremlRecord, misplaced


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
Axis = Annotated[Literal[0, 1], BeforeValidator(_whole)]
Ratio = Annotated[tuple[Positive, Positive], Strict(False)]


class PalettizeStep(CoremlRecord):
    """`palettize_weights`: weights become indices into small tables."""

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
    def _vectors_fit(self) -> PalettizeStep:
        """What coremltools 9.0 (`palettize_weights`) refuses only after minutes of work."""
        if self.cluster_dim > 1 and self.mode == "uniform":
            raise misplaced(("cluster_dim",), "must be 1 with mode = 'uniform', or use 'kmeans'")
        grouped = self.granularity == "per_grouped_channel"
        if grouped and self.group_size % self.cluster_dim:
            raise misplaced(("cluster_dim",), f"must divide group_size = {self.group_size}")
        return self


class LinearStep(CoremlRecord):
    """`linear_quantize_weights`: weights become integers with scales."""

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

    @property
    def nbits(self) -> int:
        """Bits of a stored integer: 4 or 8."""
        return int(self.dtype.lstrip("uint"))


class PruneStep(CoremlRecord):
    """`prune_weights`: small weights become zero, and only the others are stored."""

    method: Literal["prune"] = "prune"
    """Zeros that are not stored: a mask and the other values."""
    target_sparsity: Share | None = None
    """Share of weights to set to zero, the smallest first."""
    block_size: Annotated[int, Field(ge=2)] | None = None
    """Channels along `dim` that become zero together, with `target_sparsity`."""
    n_m_ratio: Ratio | None = None
    """`[n, m]`: of every m weights along `dim`, the n smallest become zero."""
    dim: Axis | None = None
    """0 for output, 1 for input channels; absent: 0 for `block_size`, 1 for `n_m_ratio`."""
    threshold: NotNegative | None = None
    """Weights up to this magnitude become zero."""
    minimum_sparsity_percentile: Share | None = None
    """With `threshold`: the share of zeros from which they are left out, 0.5 where absent."""
    weight_threshold: Threshold = 2048
    """Weights with at most this many elements stay as they are."""

    @model_validator(mode="after")
    def _one_way(self) -> PruneStep:
        """Two of coremltools 9.0's classes, `OpMagnitude-` and `OpThresholdPrunerConfig`."""
        if sum(getattr(self, key) is not None for key in WAYS) != 1:
            raise misplaced((), f"needs exactly one of {', '.join(WAYS)}")
        for key, others in _BELONGS.items():
            if getattr(self, key) is not None and all(getattr(self, o) is None for o in others):
                raise misplaced((key,), f"belongs to {' or '.join(others)}; add that, or remove it")
        if self.n_m_ratio is not None and self.n_m_ratio[0] > self.n_m_ratio[1]:
            raise misplaced(("n_m_ratio",), "must be [n, m] with n at most m")
        return self

    @property
    def structured(self) -> bool:
        """Whether zeros come in blocks, or n of m."""
        return self.block_size is not None or self.n_m_ratio is not None


WAYS = ("target_sparsity", "n_m_ratio", "threshold")
"""The three ways to choose the weights that become zero."""
_BELONGS = {
    "block_size": ("target_sparsity",),
    "dim": ("block_size", "n_m_ratio"),
    "minimum_sparsity_percentile": ("threshold",),
}
PRUNING = frozenset((*WAYS, *_BELONGS))
"""Keys that say how weights are chosen to become zero."""

Step: TypeAlias = PalettizeStep | LinearStep | PruneStep
Joint = Annotated[Step, Field(discriminator="method")]

_JOINT = {
    ("prune", "palettize"),
    ("prune", "linear"),
    ("prune", "palettize", "linear"),
    ("palettize", "linear"),
    ("palettize", "prune"),
    ("palettize", "prune", "linear"),
    ("linear", "palettize"),
    ("linear", "prune"),
}
"""What coremltools 9.0 does jointly; of any other order it fails at the last step or leaves it out
without a word."""


def joint_error(steps: Sequence[Step]) -> str | None:
    """Why coremltools 9.0 would not do one step after another; `None` where it does.

    Source: `optimize/coreml/_quantization_passes.py` (`_validate_child_constexpr_for_compress` and
    the three `transform_op`), and what it writes for each order.
    """
    methods = tuple(step.method for step in steps)
    if len(steps) < 2:
        return None
    if methods not in _JOINT:
        orders = "; ".join(" then ".join(order) for order in sorted(_JOINT))
        return f"{' then '.join(methods)} cannot be done jointly; what can is {orders}"
    for before, step in enumerate(steps):
        if (message := _misfit(step, methods[:before], methods)) is not None:
            return message
    return None


def _misfit(step: Step, earlier: tuple[str, ...], methods: tuple[str, ...]) -> str | None:
    """What a step may not ask for at its place."""
    if isinstance(step, PalettizeStep):
        if step.enable_per_channel_scale:
            return "enable_per_channel_scale must be false in joint compression"
        if step.cluster_dim > 1 and methods != ("palettize", "linear"):
            return "cluster_dim must be 1 in joint compression, except for palettize then linear"
    elif isinstance(step, LinearStep):
        if "palettize" in earlier and step.granularity != "per_tensor":
            return "linear after palettize quantizes the tables; granularity must be 'per_tensor'"
        if "palettize" in methods[len(earlier) :] and step.nbits != 8:
            return "linear before palettize must have dtype 'int8' or 'uint8'"
    elif earlier and step.structured:
        return "prune after another method takes target_sparsity or threshold, without block_size"
    return None


def unsupported(steps: Sequence[Step], target: str) -> str | None:
    """The setting that a deployment target before iOS 18 does not know; `None` where all fits.

    Source: coremltools 9.0, `optimize/coreml/_quantization_passes.py`, the `transform_op`s and
    `AbstractCompressionPass.apply`.
    """
    if target not in ("iOS16", "iOS17"):
        return None
    if len(steps) > 1:
        return "joint compression"
    return next((new for step in steps if (new := _new(step))), None)


def _new(step: Step) -> str | None:
    """The first setting of one step that needs iOS 18."""
    if isinstance(step, LinearStep):
        new = {"granularity": ("per_block",), "dtype": ("int4", "uint4")}
    elif isinstance(step, PalettizeStep):
        if step.cluster_dim > 1:
            return f"cluster_dim = {step.cluster_dim}"
        if step.enable_per_channel_scale:
            return "enable_per_channel_scale = true"
        if step.nbits == 3 and step.mode != "unique":
            return "nbits = 3"
        new = {"granularity": ("per_grouped_channel",)}
    else:
        return None
    for key, values in new.items():
        if (value := getattr(step, key)) in values:
            return f"{key} = {value}"
    return None
