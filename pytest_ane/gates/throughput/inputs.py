"""The inputs of a timed call: T positions, seeded, as the shard's own host side lays them out."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeAlias

import numpy.typing as npt

from pytest_ane.manifest import Input
from pytest_ane.mlprogram.errors import ExecutionError
from pytest_ane.mlprogram.records import Feature
from pytest_ane.models.families import Layout
from pytest_ane.probes.package import seeded_inputs
from pytest_ane.probes.seeded import gaussian, generator

Tokens: TypeAlias = int | Literal["max"]
"""Positions of a call: a number, or as many as the shard takes."""
_SEED = 0


class CallInputs(NamedTuple):
    """Arrays by name, and the positions T of a call; 0 where the package does not tell."""

    inputs: Mapping[str, npt.NDArray[Any]]
    tokens: int


def hidden_inputs(layout: Layout, tokens: int) -> CallInputs:
    """Hidden states `[T, C]` of RMS 1 at positions 0 to T - 1 of a sequence."""
    return CallInputs(layout.inputs(gaussian(generator(_SEED), (tokens, layout.width)), 0), tokens)


def package_inputs(
    features: tuple[Feature, ...], artifact: Path, tokens: Tokens,
    tables: Mapping[str, Input] | None = None, function: str | None = None,
) -> CallInputs:  # fmt: skip
    """Seeded inputs of a package without a family, at an end of its range, as `tables` says.

    Where all its flexible axes have one length, that is taken to be T. A package of fixed shapes
    is called as it is, with `max`. `ExecutionError` where it has no such T, `ProgramError` where it
    takes something else than tensors.
    """
    smallest = tokens != "max"
    inputs = seeded_inputs(features, artifact, _SEED, tables, function=function, smallest=smallest)
    lengths = {
        extent
        for feature in features
        # The channels of an image are no axis of its range.
        for extent, (low, high) in zip(inputs[feature.name].shape, feature.extents, strict=False)
        if low != high
    }
    length = lengths.pop() if len(lengths) == 1 else 0
    if tokens not in ("max", length):
        takes = f"{length} at least" if length else "inputs of fixed shapes"
        raise ExecutionError(
            f"{artifact}: it cannot be timed at T={tokens}, for it takes {takes}; time 'max'."
        )
    return CallInputs(inputs, length)
