"""Cases of packages without a family: seeded inputs of the declared shapes."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np

from pytest_ane.backends import Backend, Runner
from pytest_ane.core.arrays import Array
from pytest_ane.core.digests import tree_digest
from pytest_ane.core.errors import ProgramError
from pytest_ane.manifest import Probes
from pytest_ane.mil import read_model
from pytest_ane.mil.records import DType, Feature
from pytest_ane.probes.cases import CALLS, Case, as_array, package_case
from pytest_ane.probes.seeded import KINDS, generator
from pytest_ane.reference.budget import current_budget

_FLOATS = (DType.FP16, DType.FP32, DType.FP64)
_LARGEST = 1 << 14
"""Longest flexible axis that is probed; the default shape is where the range is open."""


_WORDS = 8
"""Numbers of 4 bytes that are held for each one that is drawn."""


def package_cases(
    backend: Backend, artifact: Path, reference: Path | None, probes: Probes
) -> list[Case]:
    """Seeded probes of a package's own inputs, with a reference package's outputs for them.

    Floating-point inputs are drawn as the probe's kind says, integers as 0 or 1, which is inside
    every vocabulary. Flexible axes are probed at their smallest, a middle and their largest length.
    A package with states is probed over sequences of calls on one state.

    Raises:
        BudgetError: an input is larger than the memory allowed.
        ProgramError: a package cannot be read, or takes something else than tensors.
    """
    runner = backend.load(artifact)
    calls = CALLS if read_model(artifact).states else 1
    cases = list(_cases(runner.inputs, artifact, probes, calls))
    if reference is None:
        return cases
    if tree_digest(artifact) == tree_digest(reference):
        raise ProgramError(
            f"{reference}: the reference is the artifact itself, so comparing proves nothing; "
            "name an uncompressed package, or 'none'."
        )
    oracle = backend.load(reference)
    return [_answered(oracle, case) for case in cases]


def _answered(oracle: Runner, case: Case) -> Case:
    """A case with a package's outputs for it, and which states they depend on."""
    state = oracle.make_state()
    *before, last = case.calls
    outputs = [oracle.predict(call, state) for call in before]
    kept = oracle.read_states(state) if before else {}
    outputs.append(oracle.predict(last, state))

    def forgets(name: str) -> bool:
        others = oracle.make_state()
        oracle.write_states(others, {n: x for n, x in kept.items() if n != name})
        again = oracle.predict(last, others)
        pairs = ((as_array(again[n]), as_array(x)) for n, x in outputs[-1].items())
        return all(np.array_equal(*pair, equal_nan=True) for pair in pairs)

    expected = case.joined([case.rows(each) for each in outputs])
    return replace(case, expected=expected, carried={name: not forgets(name) for name in kept})


def seeded_inputs(
    inputs: tuple[Feature, ...], artifact: Path, seed: int, *, smallest: bool = False
) -> dict[str, Array]:
    """One Gaussian probe by input name, of the largest shape or of the smallest.

    Raises:
        ProgramError: the package takes something else than tensors.
    """
    probes = Probes(kinds=("gaussian",), count=1, seed=seed)
    first, *more = _cases(inputs, artifact, probes)
    case = first if smallest or not more else more[-1]
    return dict(*case.calls)


def _cases(
    inputs: tuple[Feature, ...], artifact: Path, probes: Probes, calls: int = 1
) -> Iterator[Case]:
    for feature in inputs:
        if feature.kind != "tensor":
            raise ProgramError(
                f"{artifact}: input {feature.name!r} is of kind {feature.kind}; only tensors are "
                "probed yet."
            )
    kinds = [kind for kind in probes.kinds if kind in KINDS]
    for kind in kinds:
        for label, at in _ends(inputs).items():
            for number in range(probes.count):
                seed = (probes.seed, kind, label)
                sequence = [
                    {
                        f.name: _array(f, artifact, kind, at, (*seed, f.name, number, *turn))
                        for f in inputs
                    }
                    for turn in ((), *((i,) for i in range(1, calls)))
                ]
                sizes = (int(np.prod(a.shape)) for a in sequence[0].values())
                length = max(sizes, default=0)
                yield package_case(kind, f"{kind} {label} #{number}", sequence, (), length=length)


def _ends(inputs: tuple[Feature, ...]) -> dict[str, float]:
    """How far up its range every flexible axis is, by name."""
    flexible = any(low != high for f in inputs for low, high in f.ranges) or any(
        f.enumerated for f in inputs
    )
    return {"smallest": 0.0, "middle": 0.5, "largest": 1.0} if flexible else {"fixed shape": 0.0}


def _array(
    feature: Feature, artifact: Path, kind: str, at: float, seed: tuple[object, ...]
) -> Array:
    shape = _shape(feature, at)
    if 0 in shape:
        raise ProgramError(
            f"{artifact}: input {feature.name!r} has the shape {list(shape)}, which is empty, so "
            "there is nothing to probe; declare a length of at least 1 along every axis."
        )
    current_budget().check_tensor(f"{artifact}: input {feature.name!r}", shape, words=_WORDS)
    bits = generator(*seed)
    if feature.dtype in _FLOATS:
        return KINDS[kind](bits, shape or (1,)).reshape(shape)
    coins: Array = bits.random_raw(int(np.prod(shape))) >> np.uint64(63)
    return coins.astype(np.int32).reshape(shape)


def _shape(feature: Feature, at: float) -> tuple[int, ...]:
    if feature.enumerated:
        sizes = sorted(feature.enumerated, key=lambda shape: int(np.prod(shape)))
        return sizes[int(at * (len(sizes) - 1))]
    if not feature.ranges:
        return feature.shape
    defaults = feature.shape or (1,) * len(feature.ranges)
    highest = (
        default if high is None else min(high, max(_LARGEST, low))
        for default, (low, high) in zip(defaults, feature.ranges, strict=True)
    )
    return tuple(
        low + math.ceil(at * (high - low))
        for (low, _), high in zip(feature.ranges, highest, strict=True)
    )
