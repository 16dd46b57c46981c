"""`docs/reference/manifest.md`: its example loads, and it names every key and default there is."""

from __future__ import annotations

import re
from datetime import timedelta
from pathlib import Path

from pytest_ane.manifest import (
    BehaviourPolicy,
    CompressionPolicy,
    EvidencePolicy,
    FidelityPolicy,
    Linear,
    Palettize,
    PlacementPolicy,
    Probes,
    Prompt,
    Prune,
    Source,
    ThroughputPolicy,
)
from pytest_ane.manifest.base import Record
from pytest_ane.manifest.problems import shown
from pytest_ane.manifest.tables import ModelTable, Run, ShardTable
from tests.manifest.conftest import Read

TEXT = (Path(__file__).parents[2] / "docs/reference/manifest.md").read_text(encoding="utf-8")
(EXAMPLE,) = re.findall(r"```toml\n(.*?)```", TEXT, re.DOTALL)
ROWS = [
    [cell.strip() for cell in line.strip("|").split("|")]
    for line in TEXT.splitlines()
    if line.startswith("| `")
]

PREFIXES: dict[type[Record], str] = {
    PlacementPolicy: "placement.",
    CompressionPolicy: "compression.",
    FidelityPolicy: "fidelity.",
    BehaviourPolicy: "behaviour.",
    ThroughputPolicy: "throughput.",
    EvidencePolicy: "evidence.",
}


def test_the_example_loads(read: Read, tmp_path: Path) -> None:
    for module in ("my_model.py", "my_family.py"):
        (tmp_path / module).touch()
    (tmp_path / "keys").mkdir()
    (tmp_path / "keys" / "lab.pub").touch()
    manifest = read(EXAMPLE)
    assert [model.name for model in manifest.models] == ["smollm2", "trial", "torch", "mine"]
    assert len(manifest.shards) == 36 + 4 + 3
    head, block = manifest.shard("smollm2:head.0"), manifest.shard("smollm2:L02")
    assert head.policy.compression.max_bytes == 8 * 2**20
    assert isinstance(block.compression, Palettize)
    assert (block.compression.nbits, block.compression.group_size) == (8, 16)
    assert isinstance(block.compression.for_weight("embed_tokens"), Linear)
    assert block.policy.evidence.signers == (tmp_path / "keys" / "lab.pub",)
    assert block.policy.evidence_for("behaviour").max_age == timedelta(weeks=2)
    assert manifest.shard("mine:decoder").reference == "none"
    assert manifest.shard("mine:vision").golden == tmp_path / "golden" / "vision.safetensors"
    assert manifest.shard("mine:encoder").golden is None


def test_the_example_has_every_key() -> None:
    for key in {row[0].strip("`").rpartition(".")[2] for row in ROWS if len(row) > 2}:
        if key not in ("path", "block_size"):
            assert re.search(rf"\b{key}\b", EXAMPLE), key


def test_every_key_is_documented_with_its_default() -> None:
    documented = {(row[0].strip("`"), row[-2].strip("`")) for row in ROWS if len(row) > 2}
    keys = {key for key, _ in documented}
    records: list[type[Record]] = [
        Source, Probes, Prompt, Linear, Palettize, Prune, ModelTable, ShardTable, Run, *PREFIXES,
    ]  # fmt: skip
    for record in records:
        for name, field in record.by_key().items():
            key = PREFIXES.get(record, "") + name
            assert key in keys
            default = list(field.default) if isinstance(field.default, tuple) else field.default
            if isinstance(default, str | int | float | list) and name not in ("method", "prompts"):
                assert (key, shown(default)) in documented
