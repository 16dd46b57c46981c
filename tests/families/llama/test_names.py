"""A tensor that the family would leave out is an error, not another model."""

from __future__ import annotations

import numpy as np
import pytest

from pytest_ane.core.errors import SourceError
from pytest_ane.families import Cut
from pytest_ane.families.llama import open_model
from pytest_ane.sources import Source
from tests.families.llama.tiny import tiny_source


def test_the_known_tensors(smollm2: Source) -> None:
    open_model(tiny_source(layers=2, tied=False), Cut(("L00",)))
    open_model(smollm2, Cut(("L00",)))


@pytest.mark.parametrize(
    "name", ["blk.0.attn_q.bias", "rope_freqs.weight", "blk.0.ffn_gate_exps.weight", "blk.x.weight"]
)
def test_an_unknown_tensor(name: str) -> None:
    source = tiny_source()
    source.tensors[name] = np.zeros(4, np.float32)
    source.tensors["z.weight"] = np.zeros(4, np.float32)
    with pytest.raises(SourceError) as error:
        open_model(source, Cut(("L00",)))
    assert str(error.value) == (
        f"tiny.gguf: family 'llama' does not compute with its tensor {name!r} (2 such in all), so "
        "its reference would be another model."
    )
