"""Tensors by shard: shapes, dtypes, shared memory, and what a published first layer lacks."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from pytest_ane.models.families import Cut
from pytest_ane.models.families.zaya.config import ZayaConfig
from pytest_ane.models.families.zaya.weights import ZayaWeights
from tests.models.families.llama.tiny import MemorySource
from tests.models.families.zaya.tiny import tiny_source


def reader(source: MemorySource, dtype: type = np.float32, variant: str = "notes") -> ZayaWeights:
    config, names = ZayaConfig.read(source, 2, Cut((), variant=variant))
    return ZayaWeights(source, config, names, dtype)


def test_projections_are_stacked_with_values_last() -> None:
    source = tiny_source()
    weights = reader(source).cca(0)
    names = ("linear_q", "linear_k", "val_proj2", "val_proj1")
    parts = [source.tensors[f"model.layers.0.self_attn.qkv.{n}.weight"] for n in names]
    assert weights.qkv.tolist() == np.concatenate(parts).tolist()


@pytest.mark.parametrize(("bias", "left_out"), [(5.0, False), (5.01, True), (-5.01, True)])
def test_convolutions_are_left_out_beyond_a_bias_of_5(bias: float, left_out: bool) -> None:
    source = tiny_source()
    source.tensors["model.layers.0.self_attn.qkv.conv_qk.0.bias"][3] = bias
    assert (reader(source).cca(0).convolutions is None) == left_out


def test_a_first_layer_that_scales_no_residual() -> None:
    source = tiny_source()
    for name in ("scale", "bias"):
        del source.tensors[f"model.layers.0.res_scale.residual_{name}"]
    residual = reader(source).cca(0).residual
    assert residual.residual_scale.tolist() == [1] * 12
    assert residual.residual_bias.tolist() == [0] * 12


def test_any_other_layer_must_have_all_its_tensors() -> None:
    source = tiny_source()
    del source.tensors["model.layers.1.res_scale.residual_scale"]
    with pytest.raises(KeyError):
        reader(source).mixture(1)


def test_an_expert_in_fp16() -> None:
    source = tiny_source()
    fc1, fc2 = reader(source, np.float16).expert(1, 2)
    assert (fc1.dtype, fc1.shape, fc2.shape) == (torch.float16, (16, 12), (12, 8))
    name = "model.layers.1.zaya_block.experts.local_experts.2.linear_fc2.weight"
    assert fc2.tolist() == source.tensors[name].tolist()


@pytest.mark.parametrize("tied", [True, False])
def test_a_slice_of_the_head(tied: bool) -> None:
    source = tiny_source()
    table = source.tensors["model.embed_tokens.weight"]
    if not tied:
        table = source.tensors["lm_head.weight"] = -table
    _, projection = reader(source, np.float16).head(1)
    assert projection.dtype == torch.float16
    assert projection.tolist() == table[5:].tolist()
