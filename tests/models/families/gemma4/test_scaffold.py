"""`init --from` keeps in fp16 what routes, as the example does, and the attention before it."""

from __future__ import annotations

from pathlib import Path

import tomlkit

from pytest_ane.tools._init import scaffold
from tests.models.families.gemma4.tiny import tiny_source
from tests.models.sources.checkpoints import bf16, write_checkpoint

EXAMPLE = Path(__file__).parents[3] / "examples/gemma4.toml"


def test_what_routes_stays_fp16(tmp_path: Path) -> None:
    """Of a model so wide that nothing is too small to be compressed."""
    source = tiny_source(hidden_size=2080, num_experts=48)
    tensors = {name: bf16(values) for name, values in source.tensors.items()}
    write_checkpoint(tmp_path / "wide", tensors, config=source.config)
    found = scaffold(str(tmp_path / "wide"), tmp_path / "shards.toml", tmp_path / "cache")
    kept = tomlkit.parse(found.text).unwrap()["models"]["wide"]["compression"]["keep"]
    example = tomlkit.parse(EXAMPLE.read_text()).unwrap()["models"]["gemma4"]
    expected = example["compression"]["keep"]
    assert {*kept} - {*expected} == {f"{map_}_proj*" for map_ in "qkvo"}
    assert {*expected} <= {*kept}
