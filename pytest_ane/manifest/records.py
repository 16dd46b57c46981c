"""Models and shards as the manifest describes them, defaults and overrides resolved."""

from __future__ import annotations

from functools import cached_property
from pathlib import Path
from typing import Annotated, Literal, TypeAlias

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    JsonValue,
    Strict,
    WithJsonSchema,
    model_validator,
)

from pytest_ane.manifest.base import Form, Record, Relative
from pytest_ane.manifest.chain import ChainEntry, Embedding
from pytest_ane.manifest.compression import Compression, Uncompressed
from pytest_ane.manifest.inputs import Input
from pytest_ane.manifest.policy import Policy
from pytest_ane.mlprogram.arithmetic import Arithmetic, read_arithmetic

Target = Literal["iOS16", "iOS17", "iOS18"]


def _arithmetics(value: object) -> object:
    words = [value] if isinstance(value, str) else value
    if not isinstance(words, list) or not words or not all(isinstance(w, str) for w in words):
        raise ValueError("must be 'typed', 'ane' or a list of both")
    return tuple(dict.fromkeys(map(read_arithmetic, words)))


_UNIQUE = Field(json_schema_extra={"uniqueItems": True})
_ONE = {"enum": ["typed", "ane"]}
Arithmetics = Annotated[
    tuple[Arithmetic, ...],
    BeforeValidator(_arithmetics),
    WithJsonSchema({"anyOf": [_ONE, {"type": "array", "items": _ONE, "minItems": 1}]}),
]
"""One arithmetic, or both."""
Digest = Annotated[
    str,
    Form("[0-9A-Fa-f]{64}", "must be a SHA-256 digest, 64 hexadecimal digits"),
    AfterValidator(str.lower),
]
HubId = Form(
    r"[\w.-]+(/[\w.-]+)?(@[^@\s]+)?",
    "must be the id of a hub's repository, such as Qwen/Qwen3-0.6B, and perhaps @ and a revision",
)


class SourceTable(Record):
    """Where weights come from: files, an installed package, a hub's repository, or a seed."""

    path: Relative | None = None
    """A GGUF file, or a safetensors checkpoint: its folder, its index or its one file; relative to
    the manifest."""
    package: Annotated[str, Field(min_length=1)] | None = None
    """An installed distribution that carries the file; it is not imported."""
    hub: Annotated[str, HubId] | None = None
    """A repository of the Hugging Face Hub, such as `Qwen/Qwen3-0.6B`, its branch `main` unless `@`
    and a branch, tag or whole commit hash follow. It is read from the local
    cache, where `hf download` puts it, and never from the network."""
    file: Annotated[str, Field(min_length=1)] | None = None
    """The file's name inside the package, or in the hub's repository, such as a GGUF file's; absent
    there: the repository is a safetensors checkpoint."""
    seeded: Annotated[int, Field(ge=0)] | None = None
    """Synthetic weights from this seed, the same on every machine."""
    sha256: Digest | None = None
    """The expected digest of the one weights file; another one is an error."""
    config: dict[str, JsonValue] = Field(default_factory=dict)
    """The model's configuration by its published keys: all of it that matters for seeded weights,
    or values over those of a checkpoint's `config.json`."""

    @property
    def synthetic(self) -> str:
        """`synthetic (seeded 7)` where the weights are made up, else empty."""
        return "" if self.seeded is None else f"synthetic (seeded {self.seeded})"

    @model_validator(mode="after")
    def _one_place(self) -> SourceTable:
        named = (self.path, self.package, self.hub, self.seeded)
        misplaced = self.hub is None and bool(self.file) != bool(self.package)
        if sum(place is not None for place in named) != 1 or misplaced:
            raise ValueError("give either path, or package and file, or hub, or seeded")
        if self.seeded is not None and self.sha256 is not None:
            raise ValueError("seeded weights have no sha256; leave it out")
        if self.config and (self.path or Path(self.file or "")).suffix == ".gguf":
            raise ValueError("a GGUF file has its own configuration; leave config out")
        return self


_Id = Annotated[int, Field(ge=0)]
_Axis = Annotated[int, Field(ge=0, le=7)]
GOLDEN = (".safetensors", ".npz")
OF_PROMPTS = ("captured", "outlier", "extreme")
ProbeKind: TypeAlias = Literal[
    "gaussian", "unit-norm", "captured", "outlier", "extreme", "massive", "ragged", "rewrite"
]
OF_FAMILIES: tuple[ProbeKind, ...] = ("massive", "ragged", "rewrite")
"""Kinds whose calls only a family knows how to make; the first one of own packages, too."""


class Probes(Record):
    """Inputs on which a shard is compared with its reference."""

    kinds: Annotated[tuple[ProbeKind, ...], Strict(False), Field(min_length=1), _UNIQUE] = (
        "gaussian",
        "outlier",
        "captured",
        "extreme",
        *OF_FAMILIES,
    )
    """`gaussian` has RMS 1, `unit-norm` rows of norm 1, `captured` are real hidden states of the
    golden prompts, `outlier` is normal with their means, deviations and largest values by channel,
    `extreme` as large as they get, and as fp16 can take. These three need prompts, the others a
    family; the default leaves out those that a model has none for. `massive` has one channel of
    each position at 400, 4,000 and 20,000; of an own package, one of an input that is as large
    as an output. Of shards with states, `ragged` goes to the end of the
    context in calls of different T, and `rewrite` goes back and writes slots again. An encoder's
    default leaves out these three and `extreme`: what enters its blocks is normed, and it keeps no
    states."""
    count: Annotated[int, Field(ge=1, le=64)] = 2
    """Probes of each of `gaussian`, `unit-norm` and `outlier` at the smallest and the largest T;
    there is one at those between."""
    seed: Annotated[int, Field(ge=0)] = 0
    """Seed of the seeded kinds."""
    lengths: Annotated[
        tuple[Annotated[int, Field(ge=2, le=65536)], ...], Strict(False),
        _UNIQUE,
    ] = ()  # fmt: skip
    """Positions of further probes, named `long`, such as `[1024, 4096]`; none above `context`. Of a
    family's shards with states: each fills as many keys, in calls of `max-tokens`, for what
    attention loses or leaves out grows with them."""

    @property
    def of_prompts(self) -> tuple[str, ...]:
        """The kinds that are made from the states of golden prompts."""
        return tuple(kind for kind in self.kinds if kind in OF_PROMPTS)


class Prompt(Record):
    """A golden prompt: exactly one of text, chat and ids."""

    name: Annotated[
        str, Form(r"[A-Za-z0-9_.\-]{1,64}", "must be a name of letters, digits, '_', '-' and '.'")
    ]
    """Short name used in messages."""
    text: Annotated[str, Field(min_length=1)] | None = None
    """Text as it is."""
    chat: Annotated[str, Field(min_length=1)] | None = None
    """A user's message, put into the source's chat template."""
    ids: Annotated[tuple[_Id, ...], Strict(False), Field(min_length=1)] | None = None
    """Token ids."""
    greedy: Annotated[int, Field(ge=0, le=256)] = 10
    """Tokens of greedy continuation to compare; an encoder has none."""
    answer: Annotated[int, Field(ge=0, le=256)] = 0
    """Tokens, at most, of the reference's own greedy answer that are judged behind the prompt, at
    every position as the prompt's are; it ends where the model ends it. They count for no
    perplexity: what the reference says itself is always likely to it."""
    expect: Annotated[str, Field(min_length=1)] | None = None
    """What the reference's own greedy text must contain, such as `"Paris"`; of an encoder, the
    sentence that it ranks first. No comparison with the reference can see that the reference itself
    is wrong."""

    @model_validator(mode="after")
    def _one_form(self) -> Prompt:
        if sum(form is not None for form in (self.text, self.chat, self.ids)) != 1:
            raise ValueError("give exactly one of text, chat and ids")
        return self

    @property
    def question(self) -> dict[str, JsonValue]:
        """What is measured with it, as JSON; `expect` only judges that."""
        unasked = {"expect"} if self.answer else {"expect", "answer"}
        return self.model_dump(mode="json", exclude=unasked, exclude_none=True)


class OwnPort(Record):
    """What an own package calls a port of its family, and how its axes lie."""

    name: Annotated[str, Field(min_length=1)] | None = None
    """The package's name; absent: the family's."""
    axes: Annotated[tuple[_Axis, ...], Strict(False), Field(min_length=1)] | None = None
    """The family's axes in the order that the package has them, such as `[0, 3, 2, 1]`; axes of 1
    may be left out. Absent: the same."""

    join: _Axis | None = None
    """Of states that the package keeps as one, of the same `name`: its axis along which it has
    them, in the manifest's order."""

    @model_validator(mode="before")
    @classmethod
    def _from_name(cls, value: object) -> object:
        return {"name": value} if isinstance(value, str) else value

    @model_validator(mode="after")
    def _says_something(self) -> OwnPort:
        if self.name is None and self.axes is None:
            raise ValueError("give a name, or axes")
        if self.join is not None and self.name is None:
            raise ValueError("join needs the name of the state that the package keeps")
        if self.axes is not None and len(set(self.axes)) < len(self.axes):
            raise ValueError("axes names one twice; give each once")
        return self


class Shard(Record):
    """One shard, fully resolved: as `tables.ShardTable` and its model have it, paths absolute.

    `ungated` are functions of the artifact that no shard of the manifest is; a `pipeline` has ML
    Programs that are shards of their own. Nothing is said of an artifact's compression where it is
    `None`.
    """

    model: str
    id: str
    family: str | None = None
    source: SourceTable | None = None
    artifact: Path | None = None
    function: str | None = None
    ungated: tuple[str, ...] = ()
    pipeline: bool = False
    reference: Literal["float32", "none"] | Path = "float32"
    uncompressed: Path | None = None
    compression: Compression | None = None
    probes: Probes = Probes()
    inputs: dict[str, Input] = Field(default_factory=dict)
    ports: dict[str, OwnPort] = Field(default_factory=dict)
    arithmetic: tuple[Arithmetic, ...] = ("typed",)
    policy: Policy = Policy()
    max_tokens: int = 64
    context: int = 2048
    target: Target = "iOS18"

    @property
    def qualified(self) -> str:
        """Model and id, as options and messages name a shard: `smollm2:L01`."""
        return f"{self.model}:{self.id}"

    def in_arithmetic(self, arithmetic: tuple[Arithmetic, ...]) -> Shard:
        """The shard with another `arithmetic`; that of a test names a single one."""
        return self.model_copy(update={"arithmetic": arithmetic})

    @property
    def golden(self) -> Path | None:
        """The golden tensors that are its reference, if any."""
        reference = self.reference
        return reference if isinstance(reference, Path) and reference.suffix in GOLDEN else None

    @property
    def requested(self) -> Compression:
        """The compression, `none` where the manifest names none."""
        return self.compression or Uncompressed()


class Model(Record):
    """One model, resolved: as `tables.ModelTable` has it, paths absolute.

    `canary` are ids of the shards that must pass before others are built, `sentences` what an
    encoder's prompts rank; behaviour is judged by the model's own policy.
    """

    name: str
    family: str | None = None
    source: SourceTable | None = None
    variant: str | None = None
    builder: str | None = None
    depends: tuple[Path, ...] = ()
    shards: tuple[Shard, ...]
    canary: tuple[str, ...] = ()
    prompts: tuple[Prompt, ...] = ()
    sentences: tuple[str, ...] = ()
    baselines: Path | None = None
    arithmetic: tuple[Arithmetic, ...] = ("typed",)
    policy: Policy = Policy()
    max_tokens: int = 64
    context: int = 2048
    stateful: bool = False
    chain: tuple[ChainEntry, ...] = ()
    embedding: Embedding | None = None
    tokenizer: Path | None = None
    reference: Literal["packages"] | str | Path = "packages"

    @property
    def qualified(self) -> str:
        """Its name, as a shard has a qualified id."""
        return self.name

    def in_arithmetic(self, arithmetic: tuple[Arithmetic, ...]) -> Model:
        """The model and its shards with another `arithmetic`."""
        shards = tuple(shard.in_arithmetic(arithmetic) for shard in self.shards)
        return self.model_copy(update={"arithmetic": arithmetic, "shards": shards})

    @property
    def ids(self) -> tuple[str, ...]:
        """Ids of its shards, in order."""
        return tuple(shard.id for shard in self.shards)


class Manifest(Record):
    """All models of a `shards.toml`, in the file's order, and what its `[run]` says."""

    path: Path
    models: tuple[Model, ...]
    cluster: str = ""
    store: str = ""
    max_cache: int | None = None

    @cached_property
    def shards(self) -> tuple[Shard, ...]:
        """All shards of all models, in the file's order."""
        return tuple(shard for model in self.models for shard in model.shards)

    def in_arithmetic(self, arithmetic: tuple[Arithmetic, ...]) -> Manifest:
        """The manifest with another `arithmetic` for all models and shards."""
        models = tuple(model.in_arithmetic(arithmetic) for model in self.models)
        return self.model_copy(update={"models": models})

    def model_of(self, name: str) -> Model:
        """A model by name; `KeyError` if there is none."""
        return {model.name: model for model in self.models}[name]

    def shard(self, qualified: str) -> Shard:
        """A shard by its qualified id, such as `smollm2:L01`; `KeyError` if there is none."""
        return {shard.qualified: shard for shard in self.shards}[qualified]
