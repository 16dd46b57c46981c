"""Packages held to golden tensors alone: what makes a NaN or an overflow is the first reason."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pytest_ane.gates.registry import GATES
from pytest_ane.project.project import read_project
from pytest_ane.tools.blame import blame_shard, cause
from tests.mlprogram.executor.programs import build
from tests.probes.test_overflow import HALF, MASK, masked, normed, scaled

X = np.array([[1.0, 0.0, 3436.0, 3.0]], np.float32)


def softmax(x: Any) -> Any:
    powers = np.exp(x - x.max())
    return powers / powers.sum()


def norm(x: Any) -> Any:
    return (x / np.sqrt(np.square(x.astype(np.float64)).mean())).astype(np.float32)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("body", "expected", "reason"),
    [
        (masked("mul", MASK), softmax(X + MASK), "mul scores gives NaN: mask constant -inf times"),
        (masked("add", MASK), softmax(X + MASK), ""),
        (normed, norm(X), "fp16 overflows in square_0 (11.8 million): 3,436 squared"),
        (scaled, norm(X), ""),
    ],
    ids=["mask times", "mask added", "squares", "squares of less"],
)
def test_golden_alone(body: Any, expected: Any, reason: str, tmp_path: Path) -> None:
    from coremltools.converters.mil import Builder as mb
    from coremltools.converters.mil.mil import types

    spec = [mb.TensorSpec((1, 4), types.fp16)]
    build(tmp_path / "own.mlpackage", spec, lambda x: body(mb, x))
    np.savez(tmp_path / "golden.npz", **{"0.in.x": X.astype(HALF), "0.out.y": expected})
    (tmp_path / "shards.toml").write_text(
        '[models.m.shard.own]\nartifact = "own.mlpackage"\nreference = "golden.npz"\n'
    )
    project = read_project(tmp_path / "shards.toml", tmp_path / "cache", backend_name="cpu")
    (shard,), gate = project.shards, GATES["fidelity"]
    verdict = gate.judge(gate.measure(project.open_shard(shard)), shard.policy.fidelity, shard)
    if not reason:
        assert verdict.reasons == ()
        return
    assert verdict.reasons[0].reason.startswith(reason)
    assert (
        cause(blame_shard(project, shard))
        .reason.removeprefix("wrong function: ")
        .startswith(reason)
    )
