"""Hidden states beyond fp16: Gemma 3's ANE form keeps them at 1/32 of their size."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from pytest_ane.mlprogram import fp16
from pytest_ane.mlprogram.arrays import FloatArray
from pytest_ane.models.families import get_family
from pytest_ane.models.families.decoder import DecoderModel
from tests.models.families.decoder.cases import CASES
from tests.models.families.decoder.oracle import prompt

GEMMA3 = next(case for case in CASES if case.name == "gemma3")


def tiny(folder: Path, scale: float | None = None) -> DecoderModel:
    """Gemma 3, its hidden states at another scale of the model's than its family has them."""
    GEMMA3.save(folder)
    model = GEMMA3.open(folder, stateful=False)
    if scale is not None:
        model.config = replace(model.config, stream_scale=scale)
    return model


def run(model: DecoderModel, shard: str, hidden: FloatArray, dtype: torch.dtype) -> FloatArray:
    """A shard's ANE form in a dtype, between its layout's two ends."""
    conversion, layout = model.conversion(shard), model.layout(shard)
    inputs = layout.inputs(hidden)
    tensors = [torch.tensor(inputs[port.name]).to(dtype) for port in conversion.inputs]
    with torch.inference_mode():
        given = conversion.module.to(dtype)(*tensors)
    return layout.output({"y": given.float().numpy()})


@pytest.mark.parametrize("shard", ["L00", "L06", "head.0"])
def test_the_scale_changes_no_number(tmp_path: Path, shard: str) -> None:
    plain, scaled = tiny(tmp_path / "plain", 1.0), tiny(tmp_path / "scaled")
    assert scaled.config.stream_scale == 2**-5
    hidden = plain.embed(prompt(7))
    assert (scaled.layout(shard).inputs(hidden)["x"] * 32 == hidden.T[None, :, :, None]).all()
    expected = run(plain, shard, hidden, torch.float32)
    assert run(scaled, shard, hidden, torch.float32) == pytest.approx(expected, rel=1e-4, abs=1e-4)


def test_what_fp16_does_not_hold_comes_through(tmp_path: Path) -> None:
    """104,000 is the largest of Gemma 3 270M, at the first position of a text."""
    hidden = np.random.default_rng(0).normal(size=(5, GEMMA3.changes.get("hidden_size", 32)))
    hidden[0, 3] = 104_000
    hidden = hidden.astype(np.float32)
    model = tiny(tmp_path / "scaled")
    (expected,) = model.reference("L00")([hidden])
    assert expected.max() > fp16.MAX
    given = run(model, "L00", hidden, torch.float16)
    assert np.abs(given - expected).max() < 2**-8 * np.abs(expected).max()
    lost = run(tiny(tmp_path / "plain", 1.0), "L00", hidden, torch.float16)
    assert not np.isfinite(lost).all()


def test_a_layout_is_rebuilt_with_its_scale(tmp_path: Path) -> None:
    model = tiny(tmp_path)
    description = json.loads(json.dumps(model.description))
    for shard in ("L01", "head.1"):
        assert get_family("gemma3").layout(description, shard) == model.layout(shard)
