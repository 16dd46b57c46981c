"""Families: architectures that are cut into shards, run in float32, and converted.

A family is a module with the functions of `Family`; `open_model` gives a `LanguageModel`, which
knows one model's weights. Hidden states are float32 `[T, C]`, one row per position; what a shard
takes and returns besides that (layouts, rotary tables, masks, states) is the family's own business.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, Protocol, TypeAlias

import numpy as np

from pytest_ane.manifest.chain import EMBEDDING, LOGITS, Mode, channels
from pytest_ane.mlprogram.arrays import Array, FloatArray
from pytest_ane.models.sources import Source, Spread

Inputs = Mapping[str, Array]

Reference: TypeAlias = Callable[[Sequence[FloatArray]], list[FloatArray]]
"""A float32 module over whole sequences `[T, C]`, each from position 0: several at once, so that
weights which do not fit into memory together are read once for all of them."""

Routes: TypeAlias = tuple[tuple[int, ...], ...]
"""Numbers of the experts that count at each position, the one of largest weight first."""
Routing: TypeAlias = Callable[[Sequence[FloatArray]], list[Routes]]
"""The float32 router over whole sequences `[T, C]`."""
Undecided: TypeAlias = Callable[[Sequence[FloatArray]], list[tuple[int, ...]]]
"""Rows of whole sequences `[T, C]` at which rounding to fp16 decides which experts are chosen."""

Filling: TypeAlias = Callable[[FloatArray], Mapping[str, FloatArray]]
"""A shard's states after a sequence `[T, C]`, as the float32 module makes them, by port."""


@dataclass(frozen=True)
class Cut:
    """How a model is cut into shards, ids in the manifest's order.

    A call has T from 1 to `max_tokens`, and a key-value state holds `context` positions. `stateful`
    is for families that have forms with and without states, `variant` for those of several forms.
    """

    shards: tuple[str, ...]
    max_tokens: int = 64
    context: int = 2048
    stateful: bool = False
    variant: str | None = None


@dataclass(frozen=True)
class Port:
    """A shard's input, output or state in Core ML's terms: name and shape, `"T"` where flexible."""

    name: str
    shape: tuple[int | str, ...]


@dataclass(frozen=True)
class Ports:
    """What a shard declares: inputs, outputs and states, all fp16."""

    inputs: tuple[Port, ...]
    outputs: tuple[Port, ...]
    states: tuple[Port, ...] = ()


@dataclass(frozen=True)
class Conversion:
    """What the build needs to convert a shard: a traceable torch module and its ports.

    The module is traced in the dtype of its parameters; fp16 ones convert fastest. `states` are its
    buffers that become states, fp16. A builder's shard is held against its `reference`, which takes
    the inputs in order as float32 tensors and gives the outputs, or the module itself in float32.
    """

    module: Any
    inputs: tuple[Port, ...]
    outputs: tuple[Port, ...]
    states: tuple[Port, ...] = ()
    reference: Callable[..., Any] | None = None

    @property
    def ports(self) -> Ports:
        """What the converted shard declares."""
        return Ports(self.inputs, self.outputs, self.states)


class Branch(NamedTuple):
    """One of several outputs of a shard: the stream that it goes to, how, and its channels.

    -1 channels, of the only further one, are all that the first output leaves, whose stream then
    keeps its width.
    """

    gives: str
    mode: Mode
    channels: int


@dataclass(frozen=True)
class Wire:
    """Where a shard stands in the stack: which streams it takes, and what becomes of its output.

    A stream is a named array `[T, C]`. `x` is the residual stream and starts as the embedding.

    Attributes:
        takes: the streams that enter, or channels such as `x[0:8]`, side by side.
        gives: the stream that its output replaces (`set`), adds to (`add`), or lengthens along the
            channels (`append`, the vocabulary slices of `logits`).
        kind: what shards that cost alike are counted under: `block`, `attention`, `head`...
        more: further outputs, which follow the first along the channels.
        times: one channel of a stream that the output is multiplied by.
    """

    shard: str
    takes: tuple[str, ...] = ("x",)
    gives: str = "x"
    mode: Mode = "set"
    kind: str = "block"
    more: tuple[Branch, ...] = ()
    times: str | None = None

    @property
    def is_head(self) -> bool:
        """Whether it gives nothing but logits, or a slice of them, or a text's embedding."""
        return self.gives in (LOGITS, EMBEDDING) and not self.more


class Layout(Protocol):
    """The host's side of a shard: from hidden states to the artifact's inputs and back.

    Needs numpy only, so that a gate whose references are recorded loads no torch.
    """

    @property
    def width(self) -> int:
        """Channels of what enters at a position."""

    @property
    def sees(self) -> Literal["itself", "call", "state"]:
        """What a position's output depends on.

        Besides itself nothing, the earlier positions of the same call (the later ones too unless it
        is `causal`), or all earlier positions, kept in states.
        """

    @property
    def recurrent(self) -> tuple[str, ...]:
        """States that hold no position of their own for each row, such as a convolution's tail.

        The others are caches whose mask hides what is later than the query, so that a sequence may
        go back. Where a family leaves this out, no state is taken for such a cache.
        """

    @property
    def shifts(self) -> bool:
        """Whether a sequence may begin anywhere in the state (`first`); else it may be left out."""

    def inputs(self, hidden: FloatArray, start: int = 0, first: int = 0) -> Inputs:
        """The artifact's inputs for hidden states `[T, C]` at positions `start` to `start + T - 1`.

        What the state holds below `first`, which only a layout that `shifts` has to take, is
        masked. Inputs that a shard does not declare may be among them.
        """

    def output(self, outputs: Inputs) -> FloatArray:
        """The output as `[T, C]`; rows beyond those that entered are padding, to be left out."""


class Buildable(Protocol):
    """What the build needs of a model."""

    @property
    def description(self) -> dict[str, Any]:
        """JSON-serialisable; kept with every artifact: `Family.layout` rebuilds layouts from it."""

    def conversion(self, shard: str) -> Conversion:
        """A shard's module and ports, to be traced and converted."""


class LanguageModel(Buildable, Protocol):
    """One model: a source's weights seen through a family."""

    @property
    def source(self) -> Source:
        """The opened weights that the model reads."""

    @property
    def positions(self) -> int:
        """The longest sequence that the shards as cut can take."""

    @property
    def missing(self) -> Sequence[str]:
        """Shards of the whole model that the cut leaves out, in running order."""

    def layout(self, shard: str) -> Layout:
        """How hidden states enter and leave a shard."""

    def embed(self, ids: Sequence[int]) -> FloatArray:
        """Hidden states `[T, C]` that enter the first shard."""

    def reference(self, shard: str) -> Reference:
        """The float32 torch module of one shard."""

    def reference_embed(self, ids: Sequence[int]) -> FloatArray:
        """As `embed`, by the hand of the references; this and what follows may be left out."""

    def residual(self, shard: str) -> Reference | None:
        """What the residual path alone gives, exactly."""

    def routed(self, shard: str) -> Routing | None:
        """Which of a shard's experts the reference uses; None where there are none."""

    def undecided(self, shard: str) -> Undecided | None:
        """Where fp16 cannot tell which of a shard's experts are chosen, so nothing is compared."""

    def filling(self, shard: str) -> Filling | None:
        """What a shard's states hold after a sequence, which need not be run call by call then."""

    def ports(self, shard: str) -> Ports:
        """The ports of a shard's conversion, without its weights."""

    def independent(self, shard: str) -> bool:
        """Whether another hand wrote a shard's reference than its converted form; else False."""


def ports_of(model: Buildable, shard: str) -> Ports:
    """A shard's ports: as its family tells them, else those of its conversion."""
    return optional(model, "ports", shard) or model.conversion(shard).ports


def optional(model: Buildable, method: str, shard: str) -> Any:
    """What a family tells of a shard by a method that it may leave out; None without one."""
    tell = getattr(model, method, None)
    return tell(shard) if tell is not None else None


_UNTOLD: Mapping[str, Any] = {
    "begin": {},
    "causal": True,
    "entry_scale": 1.0,
    "feedback": {},
    "pools": False,
    "recurrent": None,
    "shifts": False,
    "window": None,
}


def trait(layout: Layout, name: str) -> Any:
    """What a layout tells of itself, or what is so where its family leaves it out.

    `recurrent` and `shifts` are of `Layout`. `causal`: no position sees a later one; `pools`: the
    output is one row for all positions; `window`: positions that attention sees; `entry_scale`:
    what hidden states are multiplied by as they enter. Of a manifest's chain only, `feedback`:
    outputs that enter the next call, with their inputs, and `begin`: what enters these first.
    """
    return getattr(layout, name, _UNTOLD[name])


def calls_of(layout: Layout, count: int, limit: int) -> Sequence[int]:
    """Positions of each call, at most `limit`; `ExecutionError` of packages of fixed lengths."""
    split = getattr(layout, "call_lengths", None)
    if split is not None:
        calls: Sequence[int] = split(count)
        return calls
    return [min(limit, count - start) for start in range(0, count, limit)]


class Family(Protocol):
    """The functions of a family module."""

    VERSION: str
    """Raised whenever a change here alters what a shard computes: part of every cache key."""

    def open_model(self, source: Source, cut: Cut) -> LanguageModel:
        """See a source as a model cut into shards.

        Raises:
            SourceError: another architecture or variant, or a layer that the model does not have.
            ManifestError: an id that is none of this family's shards, or a head's slice left out.
        """

    def layout(self, description: dict[str, Any], shard: str) -> Layout:
        """Rebuild a shard's layout from `LanguageModel.description`, without the source."""

    def wiring(self, shards: Sequence[str]) -> tuple[Wire, ...]:
        """The shards in running order; `ManifestError` where an id is none of this family's."""

    def starts_whole(self, shards: Sequence[str]) -> bool:
        """Whether the shards form a contiguous prefix of the model."""

    def spread(self, name: str, shape: tuple[int, ...]) -> Spread:
        """How a tensor's synthetic values are distributed, for a `seeded` source."""


Streams: TypeAlias = "dict[str, FloatArray]"


def shard_input(streams: Streams, wire: Wire) -> FloatArray:
    """A shard's input `[T, C]`: its streams side by side along the channels."""
    return np.concatenate([_taken(streams, name) for name in wire.takes], axis=1)


def apply_output(streams: Streams, wire: Wire, given: FloatArray) -> None:
    """Store a shard's output as its wire says: it replaces, adds to, or lengthens a stream."""
    if wire.times is not None:
        given = given * _taken(streams, wire.times)
    widths = [branch.channels for branch in wire.more]
    first = streams[wire.gives].shape[1] if widths == [-1] else given.shape[1] - sum(widths)
    parts = np.split(given, np.cumsum([first, *widths])[:-1], axis=1)
    branches = (Branch(wire.gives, wire.mode, first), *wire.more)
    for (stream, mode, _), rows in zip(branches, parts, strict=True):
        before = streams.get(stream)
        if before is not None and mode == "add":
            rows = before + rows
        elif before is not None and mode == "append":
            rows = np.concatenate([before, rows], axis=1)
        streams[stream] = rows


def _taken(streams: Streams, reference: str) -> FloatArray:
    if reference in streams:
        return streams[reference]
    name, part = channels(reference)
    return streams[name][:, part]
