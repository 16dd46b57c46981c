"""From a file to records: parse, lay tables over one another, validate, check, resolve shards.

All that is wrong is said at once, a line for each problem.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from difflib import get_close_matches
from fnmatch import fnmatchcase
from importlib.util import find_spec
from itertools import count
from pathlib import Path
from typing import Any, TypeVar

from pydantic import ValidationError

from pytest_ane.manifest.base import KeyPath, Record, Table, TOMLDecodeError, loads
from pytest_ane.manifest.chain import FIRST, LOGITS, unknown_stream
from pytest_ane.manifest.compression import Compression, Uncompressed
from pytest_ane.manifest.ids import ALL, NO_ALL, is_glob, is_id, named_by, nearest, selection_fault
from pytest_ane.manifest.policy import Policy
from pytest_ane.manifest.problems import (
    Layers,
    Problem,
    at_key,
    at_table,
    at_value,
    dotted,
    label,
    only,
    problem,
    report,
    without,
)
from pytest_ane.manifest.records import (
    GOLDEN,
    OF_FAMILIES,
    OF_PROMPTS,
    Manifest,
    Model,
    Probes,
    Shard,
)
from pytest_ane.manifest.tables import (
    ENCODERS,
    FAMILIES,
    VARIANTS,
    Common,
    ManifestTable,
    ModelTable,
    ShardTable,
)
from pytest_ane.mlprogram.errors import ManifestError

_FEWEST, _MOST = 3, 1000
"""Sentences that an encoder's prompts rank."""
_DRAWN = Probes(kinds=("gaussian",))
"""Of packages that people bring, where they name no others."""
_CODE = "a module in the manifest's folder or an installed one"


def load(path: Path) -> Manifest:
    """Read a manifest, or say all that is wrong, a line each, as `ManifestError`."""
    try:
        text = path.read_bytes().decode("utf-8-sig")
    except FileNotFoundError:
        fix = "run 'pytest-ane init' to write one, or name yours with --ane-manifest=FILE"
        raise ManifestError(f"{label(path)} does not exist; {fix}.") from None
    except OSError as error:
        raise ManifestError(f"{label(path)} cannot be read: {error.strerror}.") from None
    except UnicodeDecodeError as error:
        line = error.object[: error.start].count(b"\n") + 1
        raise ManifestError(f"{label(path)}:{line}: not UTF-8 text; save it as UTF-8.") from None
    return parse(text, path)


def parse(text: str, path: Path) -> Manifest:
    """A manifest from its text, as `load`; paths in it are relative to the file `path`."""
    try:
        resolver = Resolver(loads(text), path)
    except TOMLDecodeError as error:
        raise ManifestError(f"{label(path)}: not valid TOML: {error}.") from None
    except RecursionError:
        raise ManifestError(f"{label(path)}: not a manifest: nested too deeply.") from None
    manifest = resolver.manifest()
    if manifest is None:
        raise ManifestError(report(path, text, resolver.problems))
    return manifest


def package_manifest(*packages: Path) -> Manifest:
    """A manifest of packages without a reference, for `--ane-package`; or `ManifestError`."""
    for package in packages:
        if not package.is_dir():
            what = "is a file, and an .mlpackage a folder" if package.exists() else "does not exist"
            raise ManifestError(f"--ane-package: {package} {what}; check the path.")
    shards = tuple(
        Shard(
            model="package", id=name, artifact=package.absolute(), reference="none", probes=_DRAWN
        )
        for name, package in zip(package_ids(packages), packages, strict=True)
    )
    return Manifest(path=packages[0], models=(Model(name="package", shards=shards),))


def package_ids(packages: Iterable[Path]) -> list[str]:
    """A shard id for each package, from its file's name; those of one name are numbered from 2."""
    ids: list[str] = []
    for package in packages:
        name = re.sub(r"[^A-Za-z0-9_-]", "-", package.name.partition(".")[0])[:58]
        name = name if is_id(name) else f"p-{name}"
        names = (name if n == 1 else f"{name}-{n}" for n in count(1))
        ids.append(next(name for name in names if name not in ids))
    return ids


def read_compression(table: Table) -> Compression:
    """A `compression` table that stands alone; without a method it palettizes. Errors as `load`."""
    layers = Layers((((), {"compression": {"method": "palettize"} | table}),))
    try:
        common = Common.model_validate(layers.merged(), by_alias=True, by_name=False)
    except ValidationError as error:
        details = error.errors(include_url=False)
        texts = (problem(detail, Common, layers).text for detail in details)
        lines = (text if text.endswith("?") else f"{text}." for text in texts)
        raise ManifestError("\n".join(dict.fromkeys(lines))) from None
    assert common.compression is not None
    return common.compression


_SHARED = tuple(Common.model_fields)

AnyRecord = TypeVar("AnyRecord", bound=Record)


class Resolver:
    """Reads one parsed manifest; `problems` collects everything that is wrong with it."""

    def __init__(self, document: Table, path: Path) -> None:
        self.problems: list[Problem] = []
        self._document = document
        self._path = path
        self._folder = path.absolute().parent

    def manifest(self) -> Manifest | None:
        """The records, or `None` where there are problems."""
        # What is inside a model is looked at model by model.
        tops, models = dict(self._document), self._document.get("models")
        models = models if isinstance(models, dict) else {}
        if models:
            tops["models"] = {name: {} if isinstance(t, dict) else t for name, t in models.items()}
        top = self._validated(ManifestTable, Layers((((), tops),)))
        tables = ((name, table) for name, table in models.items() if isinstance(table, dict))
        resolved = [self._model(name, table) for name, table in tables]
        if self.problems or top is None:
            return None
        return Manifest(
            path=self._path, models=tuple(filter(None, resolved)), cluster=top.run.cluster or "",
            store=top.run.store or "", max_cache=top.run.max_cache,
        )  # fmt: skip

    def _model(self, name: str, raw: Table) -> Model | None:
        here: KeyPath = ("models", name)
        tables = raw.get("shard", {})
        tables = tables if isinstance(tables, dict) else {}
        bare = without(raw, _SHARED)
        if isinstance(bare.get("shard"), dict):
            bare["shard"] = {key: without(t, _SHARED) for key, t in bare["shard"].items()}
        model = self._validated(ModelTable, Layers(((here, bare),)))
        common = self._common(here, raw)
        settings = self._validated(Common, common)
        for key, table in tables.items():
            self._validated(Common, common.over((*here, "shard", key), only(table, _SHARED)))
        if settings is not None:
            self.problems += evidence_problems(settings.policy, common)
        if model is None:
            return None
        self.problems += behaviour_problems(here, model, raw)
        ids = self._ids(here, model, tables)
        self.problems += chain_problems(here, model, ids, self._folder)
        sentences, problems = read_sentences(here, model)
        self.problems += [*encoder_problems(here, model), *problems]
        for term in model.canary if ids else ():
            if fault := selection_fault(term, ids):
                self.problems.append(at_value((*here, "canary"), term, fault))
        canary = {shard for term in model.canary for shard in named_by(term, ids)}
        shards = [self._shard(here, model, shard, common, tables) for shard in ids]
        if settings is None or not all(shards):
            return None
        greedy = {"greedy": 0} if model.family in ENCODERS else {}
        reference = self._path_in(model.reference, model.reference.endswith(GOLDEN))
        own_keys = {
            "name": name,
            "variant": model.variant or next(iter(VARIANTS.get(model.family or "", ())), None),
            "shards": tuple(shards),
            "canary": tuple(shard for shard in ids if shard in canary),
            "prompts": tuple(prompt.model_copy(update=greedy) for prompt in model.prompts),
            "sentences": sentences,
            "reference": reference,
        }
        return Model(**_keys(Model, model, settings) | own_keys)

    def _common(self, here: KeyPath, raw: Table) -> Layers:
        """What the model's shards share; by default they have the kinds of probes that they can."""
        kinds: list[str] = [*_DRAWN.kinds]
        if family := raw.get("family"):
            # What enters an encoder's block is normed: no channel is massive. It keeps no states.
            grows = family not in ENCODERS
            kinds += ["outlier", "captured", *["extreme"] * grows] if raw.get("prompts") else []
            kinds += OF_FAMILIES if grows else ()
        return Layers((((), {"probes": {"kinds": kinds}}), (here, only(raw, _SHARED))))

    def _ids(self, here: KeyPath, model: ModelTable, tables: Table) -> tuple[str, ...]:
        """The model's shards, from its ranges or, where nothing makes them, from its tables."""
        self.problems += model_problems(here, model, self._folder)
        own = tuple(key for key in tables if not is_glob(key))
        made = model.family or model.builder
        ids = (model.shards or ()) if made else own
        for key in own if not made else ():
            if not is_id(key):
                says = NO_ALL if key == ALL else f"{key!r} is no shard id"
                self.problems.append(at_key((*here, "shard", key), says))
        if not ids and not made:
            fix = f"or a table [{dotted((*here, 'shard', 'NAME'))}] with an artifact"
            message = f"has no shards; give it a family, source and shards, {fix}"
            self.problems.append(at_table(here, message))
        if not made or model.shards is not None:
            for key in tables:
                if not any(fnmatchcase(shard, key) for shard in ids):
                    message = f"matches no shard; {nearest(key, ids)}"
                    self.problems.append(at_table((*here, "shard", key), message))
        return ids

    def _shard(
        self, here: KeyPath, model: ModelTable, shard: str, layers: Layers, tables: Table
    ) -> Shard | None:
        own = Layers(((here, {}),))
        for key, table in tables.items():
            if fnmatchcase(shard, key):
                layers = layers.over((*here, "shard", key), only(table, _SHARED))
                own = own.over((*here, "shard", key), without(table, _SHARED))
        settings = self._validated(Common, layers)
        table = self._validated(ShardTable, own)
        if settings is None or table is None:
            return None
        problems = [
            *shard_problems((*here, "shard", shard), model, table, own),
            *setting_problems(model, settings, layers),
            *evidence_problems(settings.policy, layers),
        ]
        self.problems += problems
        if problems:
            return None
        unknown = table.artifact is not None and "compression" not in layers.merged()
        reference = table.reference or "float32"
        own_keys = {
            "model": str(here[-1]),
            "id": shard,
            "artifact": table.artifact and Path(table.artifact),
            "reference": self._path_in(reference, reference not in ("float32", "none")),
            "uncompressed": table.uncompressed and Path(table.uncompressed),
            "compression": None if unknown else settings.compression or Uncompressed(),
        }
        return Shard(**_keys(Shard, model, table, settings) | own_keys)

    def _path_in(self, text: str, is_file: bool) -> str | Path:
        return self._folder / Path(text).expanduser() if is_file else text

    def _validated(self, record: type[AnyRecord], layers: Layers) -> AnyRecord | None:
        try:
            return record.model_validate(
                layers.merged(), by_alias=True, by_name=False, context={"folder": self._folder}
            )
        except ValidationError as error:
            details = error.errors(include_url=False)
            self.problems += [problem(detail, record, layers) for detail in details]
            return None


def _keys(record: type[Record], *tables: Record) -> dict[str, Any]:
    """Values of a record's fields that tables have too; the last table wins."""
    values = {key: value for table in tables for key, value in table}
    return {key: value for key, value in values.items() if key in record.model_fields}


# What a manifest may not say: contradictory keys, missing files and shards.


def model_problems(here: KeyPath, model: ModelTable, folder: Path) -> Iterator[Problem]:
    """All that is wrong with a model's own keys; `folder` is the manifest's."""
    yield from _prompts(here, model)
    variants = VARIANTS.get(model.family or "", ())
    if model.variant is not None and model.variant not in variants:
        message = f"is none of the family's variants; there are: {', '.join(variants) or 'none'}"
        yield at_value((*here, "variant"), model.variant, message)
    if model.builder is not None:
        for key in ("family", "source", "prompts"):
            if getattr(model, key):
                yield at_key((*here, key), f"{key!r} and a builder exclude each other; give one")
        if model.shards is None:
            yield at_table(here, "'shards' is missing; name those that the builder makes")
        module = model.builder.partition(":")[0]
        if not importable(module, folder):
            yield at_value((*here, "builder"), model.builder, f"{module!r} is not {_CODE}")
        return
    if model.depends and ":" not in model.reference:
        yield at_key((*here, "depends"), "'depends' needs a builder; a family's VERSION says it")
    if model.family is None:
        for key in ("source", "shards", *(() if model.chain else ("prompts",))):
            if getattr(model, key):
                yield at_key((*here, key), f'{key!r} needs a family; add family = "llama"')
        return
    if model.family not in FAMILIES and not importable(model.family, folder):
        message = f"is neither a family ({', '.join(FAMILIES)}) nor {_CODE}"
        if close := get_close_matches(model.family, FAMILIES, n=1):
            message = f"{message}; did you mean {close[0]!r}?"
        yield at_value((*here, "family"), model.family, message)
    if model.source is None:
        yield at_table(here, "'source' is missing; say where the family's weights come from")
    if model.shards is None:
        yield at_table(here, "'shards' is missing; name them, such as \"L00-L29, head.0-head.3\"")


def _prompts(here: KeyPath, model: ModelTable) -> Iterator[Problem]:
    names = [prompt.name for prompt in model.prompts]
    for index, name in enumerate(names):
        if name in names[:index]:
            message = "is the name of an earlier prompt; give each its own"
            yield at_value((*here, "prompts", index, "name"), name, message)
    for index, prompt in enumerate(model.prompts if model.family not in ENCODERS else ()):
        if prompt.expect is not None and not prompt.greedy:
            message = "expect needs greedy text to look in; set greedy to 1 or more"
            yield at_table((*here, "prompts", index), message)
        if prompt.answer and model.reference.endswith(GOLDEN):
            message = "needs a reference that runs, not a file; put the answer's tokens into ids"
            yield at_value((*here, "prompts", index, "answer"), prompt.answer, message)


def chain_problems(
    here: KeyPath, model: ModelTable, ids: tuple[str, ...], folder: Path
) -> Iterator[Problem]:
    """A chain whose shards, streams or files are not there, and its keys without one."""
    if not model.chain:
        for key in ("embedding", "tokenizer", "reference"):
            if key in model.model_fields_set:
                message = f"{key!r} needs a chain; say how the packages follow in [[{{}}]]"
                yield at_key((*here, key), message.format(dotted((*here, "chain"))))
        return
    at = (*here, "chain")
    if made := model.family or model.builder:
        which = "a family wires its shards" if made == model.family else "a builder's are no chain"
        yield at_key(at, f"'chain' is for packages of your own; {which}")
        return
    names = [entry.shard for entry in model.chain]
    for index, name in enumerate(names):
        if name not in ids:
            message = f"is none of this model's shards; {nearest(name, ids)}"
            yield at_value((*at, index, "shard"), name, message)
        elif name in names[:index]:
            yield at_value((*at, index, "shard"), name, "is in the chain already; name it once")
    if (unknown := unknown_stream(model.chain)) is not None:
        index, port, stream = unknown
        known = f"a chain begins with {FIRST!r}, and others are what packages before it give"
        path = (*at, index, *(("times",) if port == "times" else ("takes", port)))
        yield at_value(path, stream, f"no package before it gives the stream {stream!r}; {known}")
    if not any(stream == LOGITS for entry in model.chain for _, stream, _ in entry.outputs):
        message = "never gives the stream 'logits'; let the last package give it, or slices append"
        yield at_key(at, f"'chain' {message}")
    module = model.reference.partition(":")[0]
    if ":" in model.reference and not importable(module, folder):
        yield at_value((*here, "reference"), model.reference, f"{module!r} is not {_CODE}")


def importable(module: str, folder: Path | None = None) -> bool:
    """Whether the first part of a module's name is found, in a folder or at large, unimported."""
    top = module.partition(".")[0]
    if folder and ((folder / f"{top}.py").is_file() or (folder / top).is_dir()):
        return True
    try:
        return find_spec(top) is not None
    except ValueError:  # What some modules that are loaded already, such as `__main__`, give.
        return False


def behaviour_problems(here: KeyPath, model: ModelTable, raw: Table) -> Iterator[Problem]:
    """A model's own policy of behaviour where nothing chains its shards."""
    policy = raw.get("policy")
    chained = model.family or model.chain
    if not chained and isinstance(policy, dict) and "behaviour" in policy:
        message = "is never asked: nothing says how shards follow one another; add a chain"
        yield at_table((*here, "policy", "behaviour"), message)


def evidence_problems(policy: Policy, layers: Layers) -> Iterator[Problem]:
    """Signers that are no files."""
    for index, file in enumerate(policy.evidence.signers or ()):
        if not file.is_file():
            message = f"names {file}, which is no file; put the signer's public key (PEM) there"
            where = layers.origin(("policy", "evidence", "signers", index))
            yield at_key(where, f"'signers' {message}")


def shard_problems(
    here: KeyPath, model: ModelTable, table: ShardTable, own: Layers
) -> Iterator[Problem]:
    """A shard's own keys that contradict its model; `own` are the tables that name the shard."""
    made = model.family or model.builder
    if table.artifact is None and not made:
        yield at_table(here, "'artifact' is missing; name the shard's .mlpackage")
    if table.artifact is not None and table.reference is None:
        choices = "a .mlpackage, golden .safetensors or .npz" + (", 'float32'" if made else "")
        message = f"add what the artifact is held against: {choices} or 'none'"
        yield at_table(own.origin(("artifact",))[:-1], f"'reference' is missing; {message}")
    for key in ("uncompressed", "function"):
        if getattr(table, key) is not None and table.artifact is None:
            message = f"{key!r} needs an 'artifact'; a shard that is built has its own"
            yield at_key(own.origin((key,)), message)
    if table.ports and not (model.family and table.artifact):
        message = "needs a family and an artifact, whose ports have other names; take it out"
        yield at_table(own.origin(("ports",)), message)
    if table.inputs and model.family and table.reference in (None, "float32"):
        message = "has no effect, for the family says what its inputs are; take it out"
        yield at_table(own.origin(("inputs",)), message)
    if table.reference == "float32" and not made:
        choices = "an uncompressed .mlpackage, golden .safetensors or .npz, or 'none'"
        message = f"needs a family; name {choices}"
        yield at_value(own.origin(("reference",)), "float32", message)


def setting_problems(model: ModelTable, settings: Common, layers: Layers) -> Iterator[Problem]:
    """Probes without prompts, family or room."""
    probes = settings.probes
    lacking = {
        "golden prompts to capture from": () if model.prompts and model.family else OF_PROMPTS,
        "a family": () if model.family else OF_FAMILIES if model.builder else OF_FAMILIES[1:],
    }
    for what, those in lacking.items():
        if kinds := [kind for kind in probes.kinds if kind in those]:
            message = f"{' and '.join(kinds)}: give {what}, or leave that out"
            yield at_value(layers.origin(("probes", "kinds")), list(probes.kinds), message)
    for index, length in enumerate(probes.lengths):
        path = layers.origin(("probes", "lengths", index))
        if not model.family:
            yield at_value(path, length, "needs a family, which knows what a state holds")
        elif length > model.context:
            message = f"is more than the {model.context} positions of 'context'"
            yield at_value(path, length, f"{message}; raise that, or leave this length out")


def encoder_problems(here: KeyPath, model: ModelTable) -> Iterator[Problem]:
    """Keys of decoders in an encoder's model, and the other way round."""
    if model.family not in ENCODERS:
        if model.sentences is not None and (model.family is None or model.family in FAMILIES):
            named = " or ".join(map(repr, ENCODERS))
            yield at_key((*here, "sentences"), f"'sentences' needs an encoder: family {named}")
        return
    if model.stateful:
        yield at_key((*here, "stateful"), "'stateful' is for decoders; an encoder keeps no states")
    for index, prompt in enumerate(model.prompts):
        at = (*here, "prompts", index)
        for key in ("greedy", "answer"):
            if (count := getattr(prompt, key)) and key in prompt.model_fields_set:
                message = "must be left out, or 0: an encoder continues no text"
                yield at_value((*at, key), count, message)
        if prompt.chat is not None:
            yield at_key((*at, "chat"), "'chat' is for decoders; give an encoder's prompt as text")


def read_sentences(here: KeyPath, model: ModelTable) -> tuple[tuple[str, ...], list[Problem]]:
    """The lines of the file that `sentences` names, or what is wrong with it."""
    if (path := model.sentences) is None:
        return (), []
    try:
        lines = map(str.strip, path.read_text(encoding="utf-8").splitlines())
        sentences = tuple(filter(None, lines))
    except (OSError, UnicodeDecodeError) as error:
        why = getattr(error, "strerror", None) or error
        wrong = f"cannot be read as UTF-8 text ({why}); put a sentence a line there"
        return (), [at_value((*here, "sentences"), str(path), wrong)]
    texts = [*(prompt.name for prompt in model.prompts), *sentences]
    twice = next((text for number, text in enumerate(texts) if text in texts[:number]), None)
    if not _FEWEST <= len(sentences) <= _MOST:
        wrong = f"has {len(sentences)} sentences; give {_FEWEST} to {_MOST:,}, one a line"
    elif twice is not None:
        wrong = f"has {twice!r:.60} twice, or as a prompt's name; leave one"
    else:
        return sentences, []
    return sentences, [at_value((*here, "sentences"), str(path), wrong)]
