"""A checkpoint in the published layout: bf16, several files, an index, a configuration."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from pytest_ane.mlprogram.errors import SourceError
from pytest_ane.models.families import Cut
from pytest_ane.models.families.gemma4 import FAMILY, Gemma4Model
from pytest_ane.models.sources.safetensors import SafetensorsSource
from tests.models.families.gemma4.tiny import ROOT, MemorySource, hidden, tiny_source
from tests.models.sources.checkpoints import bf16, write_checkpoint

SHARDS = ("L00.attn", "L01.attn", "L00.p0", "L01.p5", "L01.p7", "head.1")
CUT = Cut((*SHARDS, "head.0"), max_tokens=4, context=12)


@pytest.fixture
def source() -> MemorySource:
    """Weights that bf16 holds exactly."""
    source = tiny_source()
    for name, values in source.tensors.items():
        source.tensors[name] = torch.from_numpy(values).bfloat16().float().numpy()
    return source


def published(source: MemorySource, folder: Path) -> Gemma4Model:
    """The same weights from disk."""
    tensors = [(name, bf16(values)) for name, values in source.tensors.items()]
    write_checkpoint(folder, *(dict(tensors[i::3]) for i in range(3)), config=source.config)
    return FAMILY.open_model(SafetensorsSource(folder), CUT)


@pytest.mark.parametrize("shard", SHARDS)
def test_the_same_shard_as_from_memory(source: MemorySource, tmp_path: Path, shard: str) -> None:
    found, same = published(source, tmp_path), FAMILY.open_model(source, CUT)
    x = hidden(4, found.layout(shard).width)
    np.testing.assert_array_equal(found.reference(shard)([x])[0], same.reference(shard)([x])[0])
    weights, expected = (m.conversion(shard).module.state_dict() for m in (found, same))
    assert weights.keys() == expected.keys()
    for name in weights:
        assert torch.equal(weights[name], expected[name]), name


def test_a_missing_tensor(source: MemorySource, tmp_path: Path) -> None:
    del source.tensors[f"{ROOT}layers.1.router.per_expert_scale"]
    with pytest.raises(SourceError, match=r"layers\.1\.router\.per_expert_scale"):
        published(source, tmp_path).reference("L01.p0")([hidden(1, 8)])


def test_experts_in_another_layout(source: MemorySource, tmp_path: Path) -> None:
    """Transposed, as some savers keep them."""
    name = f"{ROOT}layers.0.experts.down_proj"
    source.tensors[name] = np.ascontiguousarray(source.tensors[name].swapaxes(1, 2))
    said = r"shape \(16, 4, 8\), and by its configuration 128 rows of 4"
    with pytest.raises(SourceError, match=said):
        published(source, tmp_path).conversion("L00.p0")
