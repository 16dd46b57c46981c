"""Recorded references on a disk that is full."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import numpy as np
import pytest

from pytest_ane.make import Cache
from pytest_ane.mlprogram.errors import BuildError
from pytest_ane.probes.recording import load, save

KEY = "a" * 64


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no limits of files")
def test_a_disk_that_fills_while_a_reference_is_saved_is_one_sentence(tmp_path: Path) -> None:
    """The safetensors package raises an error of its own for it."""
    import resource

    cache, tensors = Cache(tmp_path), {"x": np.zeros(100_000, np.float32)}
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, hard))
    try:
        with pytest.raises(BuildError) as error:
            cache.get_or_make("recordings", KEY, lambda folder: save(folder, tensors, {}))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert str(error.value).startswith(f"Building into {tmp_path} failed: ")
    assert "File too large" in str(error.value)
    assert list((tmp_path / "tmp").iterdir()) == []
    folder = cache.get_or_make("recordings", KEY, lambda folder: save(folder, tensors, {}))
    assert load(folder)[0]["x"].shape == (100_000,)
    shutil.rmtree(folder)
