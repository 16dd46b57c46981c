"""Compression settings and which of them a weight gets."""

from __future__ import annotations

from typing import Any

import pytest

from pytest_ane.manifest import Linear, Palettize, Prune, Uncompressed


def with_overrides(*overrides: dict[str, Any], **settings: Any) -> Palettize:
    return Palettize.model_validate({**settings, "overrides": list(overrides)})


DOWN = with_overrides(
    {"weights": "*down*", "nbits": 8}, {"weights": "*proj", "group_size": 8}, nbits=6
)
OTHER = with_overrides({"weights": "*", "method": "linear"}, weight_threshold=0)
KEEP = with_overrides({"weights": "*", "nbits": 8}, keep=["*router*"])
NONE = Uncompressed.model_validate(
    {"overrides": [{"weights": "fc*", "method": "palettize", "nbits": 1}]}
)
GATHER = with_overrides({"op_type": "gather", "method": "none"})
PRUNE = Prune.model_validate(
    {"target_sparsity": 0.5, "overrides": [{"weights": "a", "n_m_ratio": [2, 4]}]}
)


@pytest.mark.parametrize(
    ("asked", "name", "operations", "expected"),
    [
        # The last override decides alone, and another method inherits nothing.
        (DOWN, "down_proj", (), Palettize(nbits=6, group_size=8)),
        (OTHER, "w", (), Linear(weight_threshold=2048)),
        (PRUNE, "a", (), Prune(n_m_ratio=(2, 4))),
        (KEEP, "router_0", (), Uncompressed()),
        (NONE, "fc1", (), Palettize(nbits=1)),
        (NONE, "norm", (), Uncompressed()),
        (GATHER, "embedding", ("gather", "matmul"), Uncompressed()),
        (GATHER, "embedding", ("matmul",), Palettize()),
    ],
)
def test_what_a_weight_gets(asked: Any, name: str, operations: Any, expected: Any) -> None:
    assert asked.for_weight(name, {*operations}) == expected


def test_a_name_wins_over_an_operation_and_both_over_the_rest() -> None:
    asked = with_overrides(
        {"weights": "w*", "nbits": 8}, {"op_type": "conv", "nbits": 2},
        {"op_type": "linear", "nbits": 3}, {"op_type": "conv", "nbits": 1}, nbits=6,
    )  # fmt: skip
    bits = {
        (name, op): asked.for_weight(name, {op}).model_dump()["nbits"]
        for name in ("w", "v") for op in ("conv", "linear", "matmul")
    }  # fmt: skip
    assert bits == {
        ("w", "conv"): 8, ("w", "linear"): 8, ("w", "matmul"): 8,
        ("v", "conv"): 1, ("v", "linear"): 3, ("v", "matmul"): 6,
    }  # fmt: skip


def test_joint_is_inherited_unless_said_otherwise() -> None:
    joint = [{"method": "linear", "granularity": "per_tensor"}]
    asked = with_overrides(
        {"weights": "a", "nbits": 8}, {"weights": "b", "joint": []},
        {"weights": "c", "method": "linear"}, joint=joint,
    )  # fmt: skip
    assert [len(asked.for_weight(name).steps) for name in "abcd"] == [2, 1, 1, 2]


def test_every_setting_some_weight_may_get() -> None:
    asked = with_overrides(
        {"weights": "a", "nbits": 8}, {"weights": "b", "method": "linear"}, nbits=6
    )
    assert [*asked.every()] == [Palettize(nbits=6), Palettize(nbits=8), Linear()]
