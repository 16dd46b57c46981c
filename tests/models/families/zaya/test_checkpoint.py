"""A checkpoint as published (bf16, an index, several files) gives the shards that memory gives."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from pytest_ane.make.convert import convert
from pytest_ane.make.coremltools_quiet import converter_notes
from pytest_ane.models.families import Cut
from pytest_ane.models.families.zaya import ZayaModel, open_model
from pytest_ane.models.sources.safetensors import SafetensorsSource
from tests.models.families.zaya.tiny import CONTEXT, tiny_source
from tests.models.sources.checkpoints import bf16, write_checkpoint

SHARDS = ("L00", "L01", "head.0")


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> tuple[ZayaModel, ZayaModel]:
    """The same weights, which bf16 holds exactly, in memory and in three files."""
    memory = tiny_source()
    for values in memory.tensors.values():
        values.view(np.uint32)[:] &= 0xFFFF0000
    tensors = [(name, bf16(values)) for name, values in memory.tensors.items()]
    folder = tmp_path_factory.mktemp("checkpoint")
    write_checkpoint(folder, *(dict(tensors[i::3]) for i in range(3)), config=memory.values)
    cut = Cut(SHARDS, max_tokens=4, context=CONTEXT, variant="notes")
    return open_model(memory, cut), open_model(SafetensorsSource(folder), cut)


@pytest.mark.parametrize("shard", SHARDS)
def test_the_reference(models: tuple[ZayaModel, ZayaModel], shard: str) -> None:
    hidden = np.random.default_rng(0).standard_normal((5, 12)).astype(np.float32)
    memory, files = (model.reference(shard)([hidden])[0] for model in models)
    np.testing.assert_array_equal(files, memory)
    assert np.abs(memory).max() > 0.1


@pytest.mark.slow
@pytest.mark.parametrize("shard", SHARDS)
def test_the_package_s_weights(
    models: tuple[ZayaModel, ZayaModel], shard: str, tmp_path: Path
) -> None:
    for name, model in zip(("memory", "files"), models, strict=True):
        with converter_notes():
            made = convert(model.conversion(shard), max_tokens=4, target="iOS18", subject=shard)
            made.save(str(tmp_path / f"{name}.mlpackage"))
    memory, files = (
        next((tmp_path / f"{name}.mlpackage").rglob("weight.bin")).read_bytes()
        for name in ("memory", "files")
    )
    assert files == memory
    assert len(memory) > 500
