"""Tiny checkpoints that transformers makes and saves, each with a manifest of its own.

What reads them for a reference is transformers; what reads them for the converted form is ours.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from tempfile import mkdtemp
from zlib import crc32

from tests.models.families.bert import oracle as bert
from tests.models.families.decoder.cases import CASES
from tests.models.families.decoder.oracle import Case

PREFIX = "tiny-"
_MANIFEST = """\
[models.{name}]
family = "{family}"
source = {{ path = "model" }}
shards = "{shards}"
max-tokens = {tokens}
{states}probes = {{ kinds = ["gaussian"{more}] }}
prompts = [{{ name = "random", ids = [{ids}], greedy = {greedy} }}]
policy.behaviour.max-reference-perplexity = 1e300
"""
_STATES = "context = 40\nstateful = true\n"


def _changed(case: Case) -> Case:
    """A cap of the logits that shows where it is left out, and heads that can be halved."""
    if case.name != "gemma2-caps":
        return case
    return replace(case, changes={**case.changes, "final_logit_softcapping": 3.0, "head_dim": 12})


MODELS: Mapping[str, Case | bert.Case] = {
    **{f"{PREFIX}{case.name}": _changed(case) for case in CASES},
    **{f"{PREFIX}bert-{case.name}": case for case in bert.CASES},
}
"""By the names that they have in the battery."""


def is_tiny(shard: str) -> bool:
    """Whether a shard, by qualified id, or a model is one of these."""
    return shard.startswith(PREFIX)


def family_of(shard: str) -> str:
    """The family of a shard, by qualified id, or of a model of the battery."""
    name = shard.partition(":")[0]
    return getattr(MODELS[name], "family", "bert") if is_tiny(name) else _OTHERS.get(name, name)


_OTHERS = {"smollm2": "llama", "zaya1": "zaya"}


def manifest_of(name: str, folder: Path) -> Path:
    """The manifest of one of the models, written with the checkpoint where it is not there yet."""
    case = MODELS[name]
    made = folder / f"{name}-{crc32(f'{case.changes}{case.dtype}{_MANIFEST}'.encode()):08x}"
    if not made.exists():
        folder.mkdir(parents=True, exist_ok=True)
        begun = Path(mkdtemp(dir=folder))
        case.save(begun / "model")
        begun.joinpath("shards.toml").write_text(_manifest(name, case))
        with suppress(OSError):  # Another process was faster.
            begun.rename(made)
        shutil.rmtree(begun, ignore_errors=True)
    return made / "shards.toml"


def _manifest(name: str, case: Case | bert.Case) -> str:
    ids = ", ".join(str(3 + (7 * i * i + 5 * i) % 50) for i in range(20))
    if isinstance(case, bert.Case):
        layers = {**bert.TINY, **case.changes}["num_hidden_layers"]
        shards = ", ".join([*(f"L{i:02d}" for i in range(layers)), "pooling"])
        return _MANIFEST.format(
            name=name,
            family="bert",
            shards=shards,
            tokens=24,
            states="",
            more="",
            ids=ids,
            greedy=0,
        )
    shards = ", ".join((*case.shards[:-2], "head.0"))
    return _MANIFEST.format(
        name=name,
        family=case.family,
        shards=shards,
        tokens=8,
        states=_STATES,
        more=', "ragged"',
        ids=ids,
        greedy=2,
    )
