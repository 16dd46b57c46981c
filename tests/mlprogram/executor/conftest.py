"""The converted block and its compressed forms, made once a run."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.mlprogram.executor import converted


@pytest.fixture(scope="session")
def block() -> converted.Attention:
    return converted.Attention().eval()


@pytest.fixture(scope="session")
def packages(
    tmp_path_factory: pytest.TempPathFactory, block: converted.Attention
) -> dict[str, Path]:
    """By name of the compression (`fp16`: none); `<name>-dense` as coremltools decompresses it."""
    folder = tmp_path_factory.mktemp("packages")
    with converted.quiet():
        from coremltools.optimize import coreml as cto

        plain = converted.convert(block)
        made = {"fp16": converted.save(plain, folder, "fp16")}
        for name, compress in converted.compressions().items():
            small = compress(plain)
            made[name] = converted.save(small, folder, name)
            dense = cto.decompress_weights(small)
            made[f"{name}-dense"] = converted.save(dense, folder, f"{name}-dense")
    return made
