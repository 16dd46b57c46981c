"""Every way to get compression wrong beside single values, with the literal sentence it gives."""

from __future__ import annotations

from typing import get_args

import pytest

from pytest_ane.manifest.compression import OpType
from tests.manifest.conftest import Complaints
from tests.manifest.test_problems import MODEL, PALETTE, C

PRUNE = f'{C}method = "prune"\n'
OVERRIDE = f'{PALETTE}[[models.m.compression.overrides]]\nweights = "*"\n'

SENTENCES = [
    # Pruning, joint compression.
    (
        PRUNE,
        "5: [models.m.compression] needs exactly one of target_sparsity, n_m_ratio, threshold.",
    ),
    (
        PRUNE + "target_sparsity = 0.5\nthreshold = 0.1",
        "5: [models.m.compression] needs exactly one of target_sparsity, n_m_ratio, threshold.",
    ),
    (
        PRUNE + "target_sparsity = 1.5",
        "7: [models.m.compression] target_sparsity = 1.5: must be at most 1.",
    ),
    (
        PRUNE + "n_m_ratio = [4, 2]",
        "7: [models.m.compression] n_m_ratio = [4, 2]: must be [n, m] with n at most m.",
    ),
    (
        PRUNE + "n_m_ratio = [2, 4]\nblock_size = 2",
        "8: [models.m.compression] block_size = 2: belongs to target_sparsity; add that, or remove "
        "it.",
    ),
    (
        PRUNE + "threshold = 0.1\ndim = 0",
        "8: [models.m.compression] dim = 0: belongs to block_size or n_m_ratio; add that, or "
        "remove it.",
    ),
    (
        PRUNE + "target_sparsity = 0.5\nminimum_sparsity_percentile = 0.5",
        "8: [models.m.compression] minimum_sparsity_percentile = 0.5: belongs to threshold; add "
        "that, or remove it.",
    ),
    (
        PALETTE + 'joint = [{ method = "linear" }]',
        '7: [models.m.compression] joint = [{ method = "linear" }]: linear after palettize '
        "quantizes the tables; granularity must be 'per_tensor'.",
    ),
    (
        PALETTE + 'joint = [{ method = "prune", n_m_ratio = [2, 4] }]',
        '7: [models.m.compression] joint = [{ method = "prune", n_m_ratio = [2, 4] }]: prune after '
        "another method takes target_sparsity or threshold, without block_size.",
    ),
    (
        PALETTE + 'joint = [{ method = "palettize" }]',
        '7: [models.m.compression] joint = [{ method = "palettize" }]: palettize then palettize '
        "cannot be done jointly; what can is linear then palettize; linear then prune; palettize "
        "then linear; palettize then prune; palettize then prune then linear; prune then linear; "
        "prune then palettize; prune then palettize then linear.",
    ),
    (
        C + 'method = "linear"\ndtype = "int4"\njoint = [{ method = "palettize" }]',
        '8: [models.m.compression] joint = [{ method = "palettize" }]: linear before palettize '
        "must have dtype 'int8' or 'uint8'.",
    ),
    (
        PRUNE + 'target_sparsity = 0.5\njoint = [{ method = "palettize", cluster_dim = 2 }]',
        '8: [models.m.compression] joint = [{ method = "palettize", cluster_dim = 2 }]: '
        "cluster_dim must be 1 in joint compression, except for palettize then linear.",
    ),
    (
        PALETTE + "enable_per_channel_scale = true\n"
        'joint = [{ method = "linear", granularity = "per_tensor" }]',
        '8: [models.m.compression] joint = [{ method = "linear", granularity = "per_tensor" }]: '
        "enable_per_channel_scale must be false in joint compression.",
    ),
    (
        PALETTE + 'joint = [{ method = "linear", nbits = 4 }]',
        "7: [[models.m.compression.joint]] unknown key 'nbits': the keys here are "
        "block_size, dtype, granularity, method, mode, weight_threshold.",
    ),
    (
        PALETTE + 'joint = [{ method = "none" }]',
        "7: [[models.m.compression.joint]] method = \"none\": must be one of 'palettize', "
        "'linear', 'prune'.",
    ),
    # Operations, large weights.
    (
        PALETTE + '[[models.m.compression.overrides]]\nop_type = "convolution"\nnbits = 4',
        '8: [[models.m.compression.overrides]] op_type = "convolution": must be one of '
        f"{', '.join(map(repr, get_args(OpType)))}.",
    ),
    (
        OVERRIDE + 'op_type = "conv"\nnbits = 4',
        "7: [[models.m.compression.overrides]] give either weights or op_type.",
    ),
    (
        OVERRIDE + 'joint = [{ method = "linear" }]',
        '9: [[models.m.compression.overrides]] joint = [{ method = "linear" }]: linear after '
        "palettize quantizes the tables; granularity must be 'per_tensor'.",
    ),
    (
        MODEL + '[models.m.policy.compression]\nint8-per-tensor-over = "10 MB"',
        '6: [models.m.policy.compression] int8-per-tensor-over = "10 MB": must be a number of '
        'elements or a text such as "10M".',
    ),
    (
        MODEL + '[models.m.policy.compression]\nint8-per-tensor-action = "warn"',
        '6: [models.m.policy.compression] int8-per-tensor-action = "warn": needs '
        'int8-per-tensor-over; add it, such as int8-per-tensor-over = "10M".',
    ),
    (
        PALETTE + "[[models.m.compression.overrides]]\nnbits = 4",
        "7: [[models.m.compression.overrides]] give either weights or op_type.",
    ),
    (
        OVERRIDE + "nbits = 5",
        "9: [[models.m.compression.overrides]] nbits = 5: must be one of 1, 2, 3, 4, 6, 8.",
    ),
    (
        OVERRIDE + "nbit = 4",
        "9: [[models.m.compression.overrides]] unknown key 'nbit': did you mean 'nbits'?",
    ),
    (
        OVERRIDE + "block_size = 4",
        "9: [[models.m.compression.overrides]] block_size = 4: belongs to method = 'linear'; name "
        "that method here, or leave the key out.",
    ),
    (
        OVERRIDE + 'mode = "linear"',
        "9: [[models.m.compression.overrides]] mode = \"linear\": must be one of 'kmeans', "
        "'uniform', 'unique'.",
    ),
    (
        OVERRIDE + "group_size = 16\ncluster_dim = 3",
        "10: [[models.m.compression.overrides]] cluster_dim = 3: must divide group_size = 16.",
    ),
    (
        OVERRIDE.replace('"palettize"\n', '"palettize"\ncluster_dim = 4\n') + "group_size = 6",
        "8: [[models.m.compression.overrides]] must divide group_size = 6.",
    ),
]


@pytest.mark.parametrize(("text", "sentence"), SENTENCES)
def test_sentences(text: str, sentence: str, complaints: Complaints) -> None:
    assert complaints(text) == [f"shards.toml:{sentence}"]


def test_an_inherited_mistake_is_said_once(complaints: Complaints) -> None:
    text = OVERRIDE.replace('"palettize"\n', '"palettize"\ncluster_dim = 3\n') + "nbits = 8"
    assert complaints(text) == [
        "shards.toml:7: [models.m.compression] cluster_dim = 3: must divide group_size = 32."
    ]
