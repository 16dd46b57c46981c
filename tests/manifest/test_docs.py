"""`docs/reference/manifest.md`: its example loads, and has every key that there is."""

from __future__ import annotations

import re
from datetime import timedelta
from pathlib import Path

from pytest_ane.manifest import Linear, Palettize
from tests.manifest.conftest import Read

TEXT = (Path(__file__).parents[2] / "docs/reference/manifest.md").read_text(encoding="utf-8")
(EXAMPLE,) = re.findall(r"```toml\n(.*?)```", TEXT, re.DOTALL)
ROWS = [
    [cell.strip() for cell in line.strip("|").split("|")]
    for line in TEXT.splitlines()
    if line.startswith("| `")
]


def test_the_example_loads(read: Read, tmp_path: Path) -> None:
    for module in ("my_model.py", "my_family.py"):
        (tmp_path / module).touch()
    (tmp_path / "keys").mkdir()
    (tmp_path / "keys" / "lab.pub").touch()
    (tmp_path / "sentences.txt").write_text("He plays the guitar.\nIt rains.\nA cat sleeps.\n")
    manifest = read(EXAMPLE)
    assert [model.name for model in manifest.models] == [
        "smollm2",
        "minilm",
        "trial",
        "torch",
        "mine",
        "stack",
    ]
    assert len(manifest.shards) == 36 + 7 + 4 + 3 + 3
    head, block = manifest.shard("smollm2:head.0"), manifest.shard("smollm2:L02")
    assert head.policy.compression.max_bytes == 8 * 2**20
    assert isinstance(block.compression, Palettize)
    assert (block.compression.nbits, block.compression.group_size) == (8, 16)
    assert isinstance(block.compression.for_weight("embed_tokens"), Linear)
    assert block.policy.evidence.signers == (tmp_path / "keys" / "lab.pub",)
    assert block.policy.evidence.max_age == timedelta(days=90)
    assert manifest.shard("mine:decoder").reference == "none"
    encoder = manifest.shard("mine:encoder")
    assert encoder.golden == tmp_path / "golden" / "encoder.safetensors"
    assert encoder.uncompressed == tmp_path / "encoder-fp16.mlpackage"
    vision = manifest.shard("mine:vision")
    assert vision.golden is None
    assert vision.inputs["bias"].window == 512


def test_the_example_has_every_key() -> None:
    for key in {row[0].strip("`").rpartition(".")[2] for row in ROWS if len(row) > 2}:
        if key != "path":
            assert re.search(rf"\b{key}\b", EXAMPLE), key
