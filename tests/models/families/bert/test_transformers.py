"""BERT against transformers: the same hidden states and embeddings from what it saves."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from tests.models.families.bert.oracle import (
    CASES,
    LENGTH,
    Case,
    converted,
    difference,
    expected,
    pooled,
    prompt,
    referred,
)

BOUND = 1e-4


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_hidden_states_and_embeddings(case: Case, tmp_path: Path) -> None:
    right, model = case.save(tmp_path), case.open(tmp_path)
    for length in (1, 2, 7, LENGTH):
        ids = prompt(length)
        hidden = expected(right, ids, padding=LENGTH - length)
        assert difference(hidden, expected(right, ids)) <= 1e-5  # The oracle's own mask.
        for own, embedding in (referred(model, ids), converted(model, ids)):
            assert difference(own, hidden) <= BOUND
            assert difference(embedding, pooled(hidden, case)) <= BOUND


def test_names_of_old_checkpoints(tmp_path: Path) -> None:
    """google-bert/bert-base-uncased calls its norms' tensors gamma and beta."""
    case = CASES[4]
    right, file = case.save(tmp_path), tmp_path / "model.safetensors"
    old = {
        name.replace("LayerNorm.weight", "LayerNorm.gamma").replace(
            "LayerNorm.bias", "LayerNorm.beta"
        ): tensor
        for name, tensor in load_file(file).items()
    }
    save_file(old, file)
    ids = prompt(7)
    assert difference(referred(case.open(tmp_path), ids)[0], expected(right, ids)) <= BOUND


def test_a_spoilt_weight_is_seen(tmp_path: Path) -> None:
    case, ids = CASES[0], prompt(7)
    right = case.save(tmp_path)
    right.encoder.layer[1].attention.self.key.weight.data[3] *= 1.05
    assert difference(referred(case.open(tmp_path), ids)[0], expected(right, ids)) > BOUND


def test_every_position_sees_the_later_ones(tmp_path: Path) -> None:
    """So what decoders' gates take for granted, a prefix's states in those of the whole, is not."""
    case = CASES[0]
    case.save(tmp_path)
    model, ids = case.open(tmp_path), prompt(7)
    whole, part = referred(model, ids)[0], referred(model, ids[:5])[0]
    assert np.abs(whole[:5] - part).max() > 0.1
