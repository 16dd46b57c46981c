"""How packages of the user's own follow one another: `[[models.NAME.chain]]`."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Literal, TypeAlias

from pydantic import BeforeValidator, Field, Strict, model_validator

from pytest_ane.manifest.base import RELATIVE, Form, OrText, Record, listed
from pytest_ane.mlprogram.text import ID

STREAM = r"[A-Za-z_][A-Za-z0-9_.\-]{0,63}"
_SLICE = rf"({STREAM})(?:\[(\d{{1,9}})(?::(\d{{1,9}}))?\])?"
LOGITS = "logits"
"""The stream in which a chain ends."""
EMBEDDING = "sentence_embedding"
"""The stream in which an encoder ends, one row for a text; so sentence-transformers calls it."""
FIRST = "x"
"""The stream that a chain begins with."""

Mode: TypeAlias = Literal["set", "add", "append"]
Port = Annotated[str, Form(".+", "must be the name of a package's input or output")]
Stream = Annotated[str, Form(STREAM, "must be a stream's name: letters, digits, '_', '-' and '.'")]
Channels = Annotated[
    str, Form(_SLICE, "must be a stream such as 'x', or channels of it: 'x[3]' or 'x[0:8]'")
]
Taken = Annotated[
    tuple[Channels, ...],
    Strict(False),
    BeforeValidator(listed),
    Field(min_length=1),
    OrText(_SLICE),
]


class ChainEntry(Record):
    """One package's place in a chain: which streams enter its ports, and what its outputs do.

    A stream is an array `[T, C]` that all packages of a chain share, one row for each position.
    """

    shard: Annotated[str, Form(ID, "must be the name of one of the model's shards")]
    """The shard, as its table is called."""
    functions: Annotated[tuple[Port, ...], Strict(False)] = ()
    """Functions of a multifunction package that are called, by their T: the longest that fits goes
    first. Absent: its default one."""
    takes: Annotated[dict[Port, Taken], Field(min_length=1)]
    """Streams that enter, by input port: `x`, channels of it, `x[3]` or `x[0:8]`, or a list of
    such, side by side."""
    gives: dict[Port, Stream] = Field(default_factory=dict)
    """Output ports, and the streams that they replace or begin."""
    adds: dict[Port, Stream] = Field(default_factory=dict)
    """Output ports that are added to streams."""
    appends: dict[Port, Stream] = Field(default_factory=dict)
    """Output ports that lengthen streams along the channels, as slices of the head do."""
    times: Channels | None = None
    """One channel of a stream that the outputs are multiplied by, such as an expert's weight."""
    feedback: dict[Port, Port] = Field(default_factory=dict)
    """Output ports, and the input ports that they enter in the next call; zeros in the first."""
    sees: Literal["itself", "call", "state"] | None = None
    """What a position's output depends on besides itself: nothing, earlier positions of the call,
    or all earlier ones. Absent: `state` with states or feedback, else `call` unless T is 1."""
    position_axis: int | None = None
    """The axis of the positions T of its stream ports. Absent: their only flexible axis, or the one
    that is left when a stream's channels are taken away."""

    @property
    def outputs(self) -> Iterator[tuple[str, str, Mode]]:
        """Port, stream and mode of every output in order."""
        yield from ((port, stream, "set") for port, stream in self.gives.items())
        yield from ((port, stream, "add") for port, stream in self.adds.items())
        yield from ((port, stream, "append") for port, stream in self.appends.items())

    @model_validator(mode="after")
    def _outputs_once(self) -> ChainEntry:
        ports = [port for port, _, _ in self.outputs]
        if not ports:
            raise ValueError("no output is used; give gives, adds or appends")
        if twice := next((port for port in ports if ports.count(port) > 1), None):
            raise ValueError(f"names the output {twice!r} twice; give it one stream")
        if both := set(self.feedback.values()) & self.takes.keys():
            raise ValueError(f"the input {min(both)!r} has a stream and feedback; give it one")
        return self


class Embedding(Record):
    """The table whose rows enter a chain: row i for token i."""

    file: Annotated[str, Field(min_length=1), RELATIVE]
    """`FILE.npy`, `FILE.npz#NAME`, `FILE.safetensors#NAME` or `FILE.gguf#NAME`, relative to the
    manifest."""
    scale: Annotated[float, Field(gt=0)] = 1.0
    """What rows are multiplied by."""

    @property
    def path(self) -> Path:
        """The file without a tensor's name."""
        return Path(self.file.partition("#")[0])

    @property
    def name(self) -> str:
        """The tensor's name; empty where the file has one array."""
        return self.file.partition("#")[2]

    @model_validator(mode="after")
    def _complete(self) -> Embedding:
        suffix = self.path.suffix
        if suffix not in (".npy", ".npz", ".safetensors", ".gguf"):
            raise ValueError("must be FILE.npy, or FILE#NAME of a .npz, .safetensors or .gguf")
        if (suffix == ".npy") == bool(self.name):
            raise ValueError("give the tensor's name, FILE#NAME, of .npz, .safetensors and .gguf")
        return self


def channels(reference: str) -> tuple[str, slice]:
    """Stream and channels of `x`, `x[3]` or `x[0:8]`."""
    match = re.fullmatch(_SLICE, reference)
    assert match is not None, reference
    stream, first, end = match.groups()
    if first is None:
        return stream, slice(None)
    return stream, slice(int(first), int(first) + 1 if end is None else int(end))


def unknown_stream(chain: Sequence[ChainEntry]) -> tuple[int, str, str] | None:
    """Index, port and stream of the first input whose stream nothing has given before."""
    known = {FIRST}
    for index, entry in enumerate(chain):
        taken = entry.takes | ({"times": (entry.times,)} if entry.times else {})
        for port, references in taken.items():
            for stream, _ in map(channels, references):
                if stream not in known:
                    return index, port, stream
        known |= {stream for _, stream, _ in entry.outputs}
    return None
