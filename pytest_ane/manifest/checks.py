"""What a manifest may not say: contradictory keys, missing files and shards."""

from __future__ import annotations

from collections.abc import Iterator
from difflib import get_close_matches
from importlib.util import find_spec
from pathlib import Path

from pytest_ane.manifest.base import KeyPath, Table
from pytest_ane.manifest.chain import FIRST, LOGITS, unknown_stream
from pytest_ane.manifest.ids import nearest
from pytest_ane.manifest.policy import Policy
from pytest_ane.manifest.problems import Layers, Problem, at_key, at_table, at_value, dotted
from pytest_ane.manifest.records import GOLDEN, OF_FAMILIES, OF_PROMPTS
from pytest_ane.manifest.tables import ENCODERS, FAMILIES, VARIANTS, Common, ModelTable, ShardTable

_CODE = "a module in the manifest's folder or an installed one"


def model_problems(here: KeyPath, model: ModelTable, folder: Path) -> Iterator[Problem]:
    """All that is wrong with a model's own keys; `folder` is the manifest's."""
    yield from _prompts(here, model)
    variants = VARIANTS.get(model.family or "", ())
    if model.variant is not None and model.variant not in variants:
        message = f"is none of the family's variants; there are: {', '.join(variants) or 'none'}"
        yield at_value((*here, "variant"), model.variant, message)
    if model.builder is not None:
        yield from _builder(here, model, model.builder, folder)
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


def _builder(here: KeyPath, model: ModelTable, builder: str, folder: Path) -> Iterator[Problem]:
    for key in ("family", "source", "prompts"):
        if getattr(model, key):
            yield at_key((*here, key), f"{key!r} and a builder exclude each other; give one")
    if model.shards is None:
        yield at_table(here, "'shards' is missing; name those that the builder makes")
    module = builder.partition(":")[0]
    if not importable(module, folder):
        yield at_value((*here, "builder"), builder, f"{module!r} is not {_CODE}")


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


def setting_problems(
    here: KeyPath, model: ModelTable, settings: Common, layers: Layers
) -> Iterator[Problem]:
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
