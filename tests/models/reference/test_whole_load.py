"""A GGUF file's reference against transformers' own load of the whole file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import CONFIG_MAPPING, AutoModelForCausalLM
from transformers.modeling_gguf_pytorch_utils import load_gguf_checkpoint

from pytest_ane.models.reference import DecoderReference
from pytest_ane.models.sources._gguf import GGUFSource
from tests.models.families.decoder.cases import CASES
from tests.models.families.decoder.gguf_files import write_gguf_of

READ_IN_FULL = ("llama", "qwen2")
"""Of other architectures transformers' tables leave out keys, such as the size of a head."""


def whole(file: Path) -> Any:
    """The model that transformers makes of a whole file."""
    table = load_gguf_checkpoint(str(file), return_tensors=False)["config"]
    config = CONFIG_MAPPING[table["model_type"]].from_dict(table)
    model = AutoModelForCausalLM.from_config(config, attn_implementation="eager").float().eval()
    tensors = load_gguf_checkpoint(str(file), return_tensors=True, model_to_load=model)["tensors"]
    lost = model.load_state_dict(tensors, strict=False)
    assert not lost.unexpected_keys
    assert {*lost.missing_keys} <= {"lm_head.weight"}
    model.tie_weights()
    return model


def assert_same(file: Path, ids: list[int]) -> None:
    reference, right = DecoderReference(GGUFSource(file)), whole(file)
    hidden = reference.embed(ids)
    for index in range(right.config.num_hidden_layers):
        (hidden,) = reference.layer(index).run([hidden])
    vocabulary = right.config.vocab_size
    logits = np.concatenate(
        [reference.head(0, 7)([hidden])[0], reference.head(7, vocabulary)([hidden])[0]], axis=1
    )
    with torch.inference_mode():
        expected = right(torch.tensor([ids])).logits[0].numpy()
    np.testing.assert_allclose(logits, expected, atol=1e-5 * np.abs(expected).max(), rtol=0)


@pytest.mark.parametrize("name", READ_IN_FULL)
def test_a_tiny_file(name: str, tmp_path: Path) -> None:
    case = next(case for case in CASES if case.name == name)
    case.save(tmp_path)
    assert_same(write_gguf_of(tmp_path, tmp_path / "tiny.gguf"), [3, 1, 4, 1, 5, 9, 2])


@pytest.mark.drawn(2)
@pytest.mark.heavy
def test_the_default_model(smollm2: GGUFSource) -> None:
    assert_same(Path(smollm2.label), [504, 3575, 282, 4649, 314])
