"""The tables as users write them, which `shards.toml` is validated against, and their JSON Schema.

The schema lets editors complete and check the file.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

from pydantic import AfterValidator, BeforeValidator, Field, Strict, ValidationInfo, WithJsonSchema

from pytest_ane.manifest.base import RELATIVE, Form, OrText, Record, Relative, from_folder
from pytest_ane.manifest.chain import ChainEntry, Embedding
from pytest_ane.manifest.compression import Compression
from pytest_ane.manifest.ids import GLOB, MODEL, as_range, expand
from pytest_ane.manifest.inputs import Input
from pytest_ane.manifest.policy import Policy, Size
from pytest_ane.manifest.records import Arithmetics, OwnPort, Probes, Prompt, SourceTable, Target
from pytest_ane.mlprogram.text import ID


def _texts(value: object, message: str) -> list[str]:
    texts = [value] if isinstance(value, str) else value
    if not isinstance(texts, list) or not all(isinstance(text, str) for text in texts):
        raise ValueError(message)
    return texts


def _expanded(value: object) -> object:
    message = "must be a text such as 'L00-L29, head.0-head.3', or a list of such"
    return expand(_texts(value, message))


def _terms(value: object) -> object:
    texts = _texts(value, "must be a list of shard ids, ranges and globs, such as ['L01']")
    terms = tuple(term.strip() for text in texts for term in text.split(","))
    for term in terms:
        as_range(term)  # Raises where a range counts backwards.
    return terms


ModelName = Annotated[str, Form(MODEL, "must be letters, digits, '_', '-' and '.'")]
ShardKey = Annotated[
    str, Form(GLOB, "must be a shard id such as L00, or a glob such as 'L*' (letters, digits, _.-)")
]
InputName = Annotated[str, Form(".+", "must be an input's name, which is not empty")]
_PACKAGE = r".*\.(mlpackage|mlmodelc)/?"
Package = Annotated[str, Form(_PACKAGE, "must be the path of a .mlpackage or .mlmodelc"), RELATIVE]
Reference = Annotated[
    str,
    Form(
        rf"float32|none|{_PACKAGE}|.*\.(safetensors|npz)",
        "must be 'float32' (needs a family), 'none', or the path of a .mlpackage, a .mlmodelc or "
        "golden .safetensors or .npz",
    ),
]
_IDS = {"type": "string", "pattern": rf"^\s*{ID}(\s*,\s*{ID})*\s*$"}
Ids = Annotated[
    tuple[str, ...],
    BeforeValidator(_expanded),
    WithJsonSchema({"anyOf": [_IDS, {"type": "array", "items": _IDS, "minItems": 1}]}),
]
Terms = Annotated[
    tuple[str, ...],
    BeforeValidator(_terms),
    WithJsonSchema({"anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}}]}),
]
FAMILIES = (
    "bert", "gemma2", "gemma3", "gemma4", "granite", "llama", "mistral", "mixtral", "phi3",
    "qwen2", "qwen2_moe", "qwen3", "qwen3_moe", "smollm3", "zaya",
)  # fmt: skip
"""Architectures that come with the package; any other family is a module of the user's."""
VARIANTS: dict[str, tuple[str, ...]] = {"zaya": ("published", "notes")}
"""Forms of a family's model, the usual one first, where there are several."""
ENCODERS = ("bert",)
"""Those that give a text's embedding, and no logits."""
_MODULE = r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*"
Module = Annotated[str, Form(_MODULE, "must be a family or a module's name, such as 'my.family'")]
Builder = Annotated[
    str, Form(rf"{_MODULE}:[A-Za-z_]\w*", "must be a module and a function, 'module:function'")
]
ChainReference = Annotated[
    str,
    Form(
        rf"packages|{_MODULE}:[A-Za-z_]\w*|.*\.safetensors",
        "must be 'packages', a function of yours, 'module:function', or golden logits, a "
        ".safetensors",
    ),
]


class Common(Record):
    """Keys that a model and its shards share; the nearer table wins, key by key."""

    compression: Compression | None = None
    """How weights are compressed; absent: not at all. Another `method` replaces the table below."""
    probes: Probes = Probes()
    """Inputs on which shards are compared with their reference."""
    policy: Policy = Policy()
    """What a shard must reach to pass."""


class ShardTable(Common):
    """Settings of one shard, or of all whose ids match a glob; the rest comes from the model."""

    artifact: Package | None = None
    """The user's own `.mlpackage`, relative to the manifest, in place of one that is built."""
    function: Annotated[str, Field(min_length=1)] | None = None
    """The function of an artifact that has several; absent: each is gated, as `ID[function]`."""
    reference: Reference | None = None
    """What the shard is held against: `float32` (the family's or the builder's module), `none`
    (only that it runs, with finite output that the input changes), an uncompressed `.mlpackage`, or
    golden tensors recorded before, a `.safetensors` or `.npz`. Needed with an artifact."""
    uncompressed: Package | None = None
    """The artifact's program before compression, a `.mlpackage`: what compression did to each
    weight, and errors of the program itself, are measured against it. Shards that are built have
    their own; an artifact without compressed weights needs none."""
    inputs: dict[InputName, Input] = Field(default_factory=dict)
    """What the inputs of your own packages and builder's shards are drawn from, by input."""
    ports: dict[InputName, Annotated[OwnPort, OrText()]] = Field(default_factory=dict)
    """What an artifact in the place of a family's shard calls the family's inputs, outputs and
    states: a name, `x = "hidden_in"`, or a table with the order of axes too."""


class ModelTable(Common):
    """One model: where its weights come from, how it is cut, compressed and judged."""

    family: Module | None = None
    """The architecture, such as `llama`, or a module of your own with a family's functions; absent
    for packages of your own."""
    source: SourceTable | None = None
    """Where the weights come from; needed with a family."""
    variant: str | None = None
    """Which form of the model is computed, where a family has several: of `zaya`, `published` (the
    default), or `notes`, that of a lab's shards."""
    arithmetic: Arithmetics = ("typed",)
    """How the CPU executor computes what is judged: `typed`, float32 inside and rounded as the
    program's types say; `ane`, as the ANE of M4 and later does, where that is known; or both,
    `["typed", "ane"]`. On a Mac the device computes, whatever stands here."""
    max_tokens: Annotated[int, Field(ge=1, le=65536)] = 64
    """Positions a flexible shard takes at once: T is 1 to this."""
    context: Annotated[int, Field(ge=1, le=1 << 20)] = 2048
    """Positions that a shard's key-value state holds: the longest text it can decode."""
    target: Target = "iOS18"
    """Minimum deployment target of the conversion."""
    stateful: bool = False
    """Whether attention keeps keys and values in states (`ct.StateType`) and so takes a text step
    by step; for decoders, whose blocks otherwise take a whole text at once."""
    builder: Builder | None = None
    """In place of a family: a function of your own, `module:function`, that makes a shard from a
    torch module. It is the only code that a manifest runs, a family of your own apart."""
    depends: Annotated[tuple[Relative, ...], Strict(False)] = ()
    """Files and folders that a builder reads, such as weights: when they change, its shards are
    built again. Of a chain, what the function named as its `reference` reads."""
    shards: Ids | None = None
    """Shard ids and ranges, such as `"L00-L29, head.0-head.3"`; needed with a family or builder."""
    canary: Terms = ()
    """Shards, by id, range or glob, whose gates run first: unless they pass, the model's other
    shards are neither built nor gated, and fail."""
    prompts: Annotated[tuple[Prompt, ...], Strict(False)] = ()
    """Golden prompts: behaviour is measured on them, and captured probes come from them."""
    sentences: Relative | None = None
    """Of an encoder: a text file, relative to the manifest, with a sentence a line. Behaviour ranks
    them for each prompt; absent: each prompt ranks the others."""
    baselines: Relative | None = None
    """Folder of the stored benchmark runs that throughput is compared with, relative to the
    manifest; absent: `.benchmarks` in the folder that pytest is started in."""
    chain: Annotated[tuple[ChainEntry, ...], Strict(False)] = ()
    """How packages of your own follow one another, in running order, up to the stream `logits`:
    then behaviour is gated, as it is of a family."""
    embedding: Embedding | None = None
    """The table whose rows begin a chain, in the stream `x`; absent: `x` begins as the token ids,
    one channel, for a package that embeds them."""
    tokenizer: Relative | None = None
    """Of a chain: a `tokenizer.json`, relative to the manifest; without it prompts are ids."""
    reference: ChainReference = "packages"
    """What a chain's logits are held against: `packages`, each shard's own `reference` or
    `uncompressed` package in its place; `module:function`, a function of yours from token ids to
    logits `[T, V]`; or golden logits, a `.safetensors`."""
    shard: dict[ShardKey, ShardTable] = Field(default_factory=dict)
    """Settings by shard id or glob; without a family these tables are the shards."""


def _store(text: str, info: ValidationInfo) -> str:
    return text if "://" in text else str(from_folder(Path(text), info))


class RunTable(Record):
    """Keys of a run as a whole."""

    cluster: Annotated[str, Field(min_length=1)] | None = None
    """URL of the Dask scheduler over whose workers runs are spread, such as
    `tcp://10.0.0.7:8786`."""
    store: Annotated[str, Field(min_length=1), AfterValidator(_store)] | None = None
    """The store that machines share: a URL that fsspec knows, such as `s3://bucket/ane`, or a
    folder, relative to the manifest; absent: none."""
    max_cache: Size | None = None
    """Bytes of this machine's cache folder above which entries that no process uses are deleted,
    the least recently used first; absent: any. What a run uses stays until the next one."""


class ManifestTable(Record):
    """Models, their shards, and what these must reach: the manifest of pytest-ane."""

    run: RunTable = RunTable()
    """Where a run works."""
    models: Annotated[dict[ModelName, ModelTable], Field(min_length=1)]
    """Models by name."""


_DRAFT = "https://json-schema.org/draft/2020-12/schema"


def json_schema() -> dict[str, Any]:
    """JSON Schema (draft 2020-12) of the manifest as users write it, generated from the records.

    It cannot know what only layers of tables say together, so it asks for less than `load`: a
    shard's `compression = { nbits = 8 }` is valid, for the model's table completes it.
    """
    schema = ManifestTable.model_json_schema(by_alias=True)
    return {"$schema": _DRAFT, "title": "shards.toml of pytest-ane", **_plain(schema)}


def _plain(schema: Any) -> Any:
    """Without pydantic's titles, OpenAPI's discriminators, and nulls, which TOML does not have."""
    if isinstance(schema, list):
        return [_plain(item) for item in schema if item != {"type": "null"}]
    if not isinstance(schema, dict):
        return schema
    left_out = {"discriminator": True, "title": isinstance(schema.get("title"), str),
                "default": isinstance(schema.get("default"), dict | None)}  # fmt: skip
    plain = {key: _plain(value) for key, value in schema.items() if not left_out.get(key)}
    if isinstance(words := plain.get("description"), str):
        plain["description"] = " ".join(words.split())
    if "patternProperties" in schema:
        plain["additionalProperties"] = False
    if "discriminator" in schema:
        plain["anyOf"] = plain.pop("oneOf")  # A partial table may fit several branches.
    if len(plain.get("anyOf", ())) == 1:
        plain |= {**plain.pop("anyOf")[0], **plain}
    return plain
