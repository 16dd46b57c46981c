"""Cases of packages without a family: seeded inputs of the declared shapes."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import product, starmap
from pathlib import Path

import numpy as np

from pytest_ane.backends import Backend, Runner
from pytest_ane.core.arrays import Array
from pytest_ane.core.digests import tree_digest
from pytest_ane.core.errors import ProgramError
from pytest_ane.manifest import Input, Probes
from pytest_ane.mil import counterpart, read_any
from pytest_ane.mil.records import NUMBERS, Feature
from pytest_ane.probes.cases import CALLS, Case, as_array, package_case
from pytest_ane.probes.domains import domains
from pytest_ane.probes.outputs import Kinds, output_kinds
from pytest_ane.probes.sampler import Sampler
from pytest_ane.probes.seeded import KINDS
from pytest_ane.reference.budget import current_budget
from pytest_ane.reference.images import is_color, mode

_LARGEST = 1 << 14
"""Longest flexible axis that is probed; the default shape is where the range is open."""


_WORDS = 8
"""Numbers of 4 bytes that are held for each one that is drawn."""
_MOST_CALLS = 256
"""Calls over which all ids of an input are drawn, where they suffice: bytes one by one do."""


def package_cases(
    backend: Backend,
    artifact: Path,
    reference: Path | None,
    probes: Probes,
    tables: Mapping[str, Input] | None = None,
    function: str | None = None,
) -> list[Case]:
    """Seeded probes of a package's own inputs, with a reference package's outputs for them.

    Inputs are drawn as `tables` says, which is the manifest's, else as the programs imply
    (`pytest_ane.probes.domains`). Flexible axes are probed at their smallest, a middle and their
    largest length; further probes of that draw the ids that are left, where 256 calls can.
    A package with states is probed over sequences of calls on one state. A function of several is
    compared with that of the same name, or the reference's only one.

    Raises:
        BudgetError: an input is larger than the memory allowed.
        ProgramError: a package cannot be read, or takes something else than tensors and images;
            it has no such input, or an input's options do not fit it.
    """
    runner = backend.load(artifact, function)
    model = read_any(artifact, weights=False, function=function)
    calls = CALLS if model.states else 1
    known = domains(runner.inputs, tables or {}, artifact, reference, function)
    sampler, kinds = Sampler(runner.inputs, artifact, known), output_kinds(model)
    cases = list(_cases(sampler, probes, calls, kinds, cover=True))
    if reference is None:
        return cases
    if tree_digest(artifact) == tree_digest(reference):
        raise ProgramError(
            f"{reference}: the reference is the artifact itself, so comparing proves nothing; "
            "name an uncompressed package, or 'none'."
        )
    oracle = backend.load(reference, counterpart(reference, function))
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
    inputs: tuple[Feature, ...],
    artifact: Path,
    seed: int,
    tables: Mapping[str, Input] | None = None,
    *,
    function: str | None = None,
    smallest: bool = False,
) -> dict[str, Array]:
    """One Gaussian probe by input name, of the largest shape or of the smallest.

    Inputs are drawn as `tables` says, which is the manifest's, else as the program implies.

    Raises:
        ProgramError: as `package_cases`.
    """
    probes = Probes(kinds=("gaussian",), count=1, seed=seed)
    sampler = Sampler(inputs, artifact, domains(inputs, tables or {}, artifact, function=function))
    first, *more = _cases(sampler, probes)
    case = first if smallest or not more else more[-1]
    return dict(*case.calls)


def _cases(
    sampler: Sampler,
    probes: Probes,
    calls: int = 1,
    kinds: Kinds = Kinds(),  # noqa: B008 - frozen
    *,
    cover: bool = False,
) -> Iterator[Case]:
    subject, inputs = sampler.subject, sampler.features
    for feature in inputs:
        if feature.kind not in ("tensor", *NUMBERS) and not mode(feature):
            raise ProgramError(
                f"{subject}: input {feature.name!r} is of kind {feature.kind}; tensors, numbers "
                "and images are probed."
            )
    ends = _ends(inputs)

    def shapes(label: str) -> dict[str, tuple[int, ...]]:
        return {f.name: _shape_of(f, subject, ends[label]) for f in inputs}

    def case(kind: str, label: str, number: int) -> Case:
        extents, probe = shapes(label), (probes.seed, kind, label)
        step = sampler.positions(extents)
        sequence = [
            sampler.call(extents, kind, probe, number, start=turn * step) for turn in range(calls)
        ]
        length = max((int(np.prod(a.shape)) for a in sequence[0].values()), default=0)
        name = f"{kind} {label} #{number}"
        drawn = package_case(kind, name, sequence, (), length=length, kinds=kinds)
        return replace(drawn, domains=sampler.domains)

    plan = [*product([kind for kind in probes.kinds if kind in KINDS], ends, range(probes.count))]
    yield from starmap(case, plan)
    if cover and plan:
        kind, label, last = plan[-1]
        left = sampler.calls_left(shapes(label), _MOST_CALLS - len(plan) * calls)
        more = range(last + 1, last + 1 + math.ceil(left / calls))
        yield from (case(kind, label, number) for number in more)


def _ends(inputs: tuple[Feature, ...]) -> dict[str, float]:
    """How far up its range every flexible axis is, by name."""
    flexible = any(low != high for f in inputs for low, high in f.ranges) or any(
        f.enumerated for f in inputs
    )
    return {"smallest": 0.0, "middle": 0.5, "largest": 1.0} if flexible else {"fixed shape": 0.0}


def _shape_of(feature: Feature, subject: Path | str, at: float) -> tuple[int, ...]:
    shape = (*_shape(feature, at), *((3,) if is_color(feature) else ()))
    if 0 in shape:
        raise ProgramError(
            f"{subject}: input {feature.name!r} has the shape {list(shape)}, which is empty, so "
            "there is nothing to probe; declare a length of at least 1 along every axis."
        )
    current_budget().check_tensor(f"{subject}: input {feature.name!r}", shape, words=_WORDS)
    return shape


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
