"""Configurations that the converted side alone reads wrongly: the gates are red, and say why."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import fields
from pathlib import Path

import pytest
import torch

from pytest_ane.manifest import FAMILIES
from pytest_ane.models.families.bert import BertConfig
from pytest_ane.models.families.decoder._config import DecoderConfig, Layer, Mixture, Names
from pytest_ane.report.verdict import reasons
from tests.battery import FAULTS
from tests.battery.fault import Fault
from tests.battery.run import RIGHT, verdicts
from tests.battery.table import CAUSES
from tests.battery.tiny import family_of, is_tiny
from tests.forked import Forge

ROOT = Path(__file__).parents[2]
KEYS = {name: fault for name, fault in FAULTS.items() if fault.place == "reading"}
PAIRS = [
    (fault, shard)
    for fault in KEYS.values()
    for shard in fault.shards
    if is_tiny(shard) and shard not in fault.equivalent
]
QUICK = (
    ("key-theta-up", "tiny-llama:L01"),
    ("key-window-pattern", "tiny-gemma2-caps:L00"),
    ("key-shares-of-chosen", "tiny-qwen3-moe:L01"),
    ("key-relu", "tiny-llama:L01"),
    ("key-norm-offset-head", "tiny-gemma3:head.0"),
    ("key-logit-cap-dropped", "tiny-gemma2-caps:head.0"),
    ("key-logits-dropped", "tiny-granite:head.0"),
    ("key-tied", "tiny-llama:head.0"),
    ("key-embedding-dropped", "tiny-gemma3"),
    ("key-next-token", "tiny-llama"),
)
"""What a change tries: faults whose shards are the cheapest of their kind."""
EVERY = frozenset(FAMILIES)
DECODERS = EVERY - {"bert", "gemma4", "zaya"}
SPARSE = frozenset({"mixtral", "qwen3_moe", "qwen2_moe", "gemma4"})
GEMMAS = frozenset({"gemma2", "gemma3", "gemma4"})
HAVE: Mapping[str, frozenset[str]] = {
    "activation": EVERY,
    "biases": frozenset({"llama", "smollm3", "qwen2", "qwen2_moe", "qwen3", "granite"}),
    "embedding scale": EVERY,
    "epsilon": EVERY,
    "experts": SPARSE | {"zaya"},
    "head count": EVERY,
    "norm offset": EVERY - {"bert"},
    "partial RoPE": frozenset({"phi3", "gemma4", "zaya"}),
    "query scale": EVERY - {"bert", "zaya"},
    "RoPE base": EVERY - {"bert"},
    "RoPE scaling": EVERY - {"bert"},
    "soft caps": GEMMAS,
    "tied head": DECODERS - {"gemma2", "gemma3"} | {"gemma4", "zaya"},
    "tokens": EVERY,
    "top-k normalisation": SPARSE,
    "window": EVERY - {"bert"},
    "window pattern": frozenset(
        {"qwen2", "qwen2_moe", "qwen3", "smollm3", "gemma2", "gemma3", "gemma4", "zaya"}
    ),
}
"""Families that have a key, at least, by what the battery calls it."""
OF_FIELDS: Mapping[str, str] = {
    "activation": "activation",
    "biases": "biases",
    "embedding_scale": "embedding scale",
    "epsilon": "epsilon",
    "experts": "experts",
    "fused": "order of rows",
    "head": "head count",
    "head_norms": "head norms",
    "heads": "head count",
    "kv_heads": "head count",
    "layers": "layers that turn",
    "logit_cap": "soft caps",
    "logit_scale": "multipliers",
    "mixture": "experts",
    "norm_offset": "norm offset",
    "normalized": "top-k normalisation",
    "paired": "order of rows",
    "parts": "names",
    "pooling": "pooling",
    "post_norms": "norms around",
    "residual_scale": "multipliers",
    "rotaries": "RoPE base",
    "rotary": "layers that turn",
    "scale": "query scale",
    "score_cap": "soft caps",
    "shared": "experts",
    "tied": "tied head",
    "top": "experts",
    "types": "embedding scale",
    "value_norms": "head norms",
    "window": "window",
}
"""Fields of configurations and of names, by the key that reads them wrongly."""
SIZES = frozenset(
    {"width", "ffn", "vocabulary", "positions", "sparse", "length", "slices", "max_tokens"}
    | {"context", "stream_scale", "family", "root", "own"}
)
"""The rest: what another value of is refused, for tensors have other names or shapes, and the
manifest's and the family's own."""


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


def families(kind: str) -> set[str]:
    shards = (s for fault in KEYS.values() if fault.kind == f"key: {kind}" for s in fault.shards)
    return {family_of(shard) for shard in shards}


@pytest.mark.parametrize("kind", HAVE)
def test_families_that_have_a_key(kind: str) -> None:
    assert families(kind) >= HAVE[kind]


def test_every_field_is_read_wrongly_or_a_size() -> None:
    every = {
        f.name for of in (DecoderConfig, Layer, Mixture, Names, BertConfig) for f in fields(of)
    }
    assert every == OF_FIELDS.keys() | SIZES
    assert {f"key: {kind}" for kind in OF_FIELDS.values()} <= {f.kind for f in KEYS.values()}


def red(fault: Fault, shard: str, cache: Path) -> dict[str, str]:
    """First reasons of the gates that do not pass."""
    judged = verdicts(fault, shard, cache)
    return {v.gate: reasons(v)[0] for v in judged if v.status != "passed"}


def is_red(fault: Fault, shard: str, cache: Path) -> None:
    found = red(fault, shard, cache)
    assert fault.gate in found
    assert re.search(CAUSES[fault.cause], found[fault.gate])


@pytest.mark.parametrize(("name", "shard"), QUICK)
def test_one_of_each_kind(name: str, shard: str, cache: Path) -> None:
    is_red(KEYS[name], shard, cache)


def test_read_rightly(cache: Path) -> None:
    assert red(FAULTS[RIGHT], "tiny-llama:L01", cache) == {}


@pytest.mark.heavy
@pytest.mark.drawn
@pytest.mark.parametrize(
    ("fault", "shard"), PAIRS, ids=[f"{fault.name}@{shard}" for fault, shard in PAIRS]
)
def test_every_key(fault: Fault, shard: str, cache: Path) -> None:
    is_red(fault, shard, cache)


@pytest.mark.heavy
@pytest.mark.drawn
@pytest.mark.parametrize("shard", sorted({shard for _, shard in PAIRS}))
def test_every_shard_read_rightly(shard: str, cache: Path) -> None:
    found = red(FAULTS[RIGHT], shard, cache)
    if ":" in shard:
        # An encoder's pooling has no weights to compress.
        assert found.keys() <= ({"compression"} if shard.endswith("pooling") else set())
    else:  # One prompt of 20 tokens is too little for a whole model to be proven right.
        assert not re.search(CAUSES["embedding"], found.get("behaviour", ""))


@pytest.mark.drawn(0)
@pytest.mark.heavy
def test_an_own_family_that_forgets_gemma_s_offset(tmp_path: Path, forge: Forge) -> None:
    """Its norms compute x w, where the checkpoint means x (1 + w)."""
    folder = tmp_path / "own"
    shutil.copytree(ROOT / "examples" / "own_family", folder)
    command = ["pytest", "--ane-manifest=shards.toml", "--ane-shards=L00", "-m", "gate"]
    command += ["--ane-cache=cache"]
    right = forge.run(command, folder)
    assert right.returncode == 0, right.stdout
    code = folder / "vault_gemma.py"
    code.write_text(code.read_text().replace("norm_offset=1.0", "norm_offset=0.0"))
    wrong = forge.run(command, folder)
    assert wrong.returncode == 1, wrong.stdout
    assert re.search(r"vault:L00: fidelity failed;.*\n  - wrong function: ", wrong.stdout)
