"""Cases of packages without a family: seeded inputs of the declared shapes, on states if any."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from pytest_ane.backends import Backend, CpuBackend, Runner
from pytest_ane.manifest import Input, Probes
from pytest_ane.mlprogram.arrays import Array, Arrays
from pytest_ane.mlprogram.errors import ExecutionError, ProgramError
from pytest_ane.mlprogram.executor.budget import current_budget
from pytest_ane.mlprogram.executor.interface import is_color, mode
from pytest_ane.mlprogram.model import counterpart, read_any, read_functions
from pytest_ane.mlprogram.records import NUMBERS, Feature, MLModel, Pipeline
from pytest_ane.models.families import Port
from pytest_ane.probes.cases import TURNS, Case, as_array, output_kinds, package_case
from pytest_ane.probes.domains import Sampler, Slots, domains, slots
from pytest_ane.probes.seeded import KINDS, MASSIVE, generator, lengths
from pytest_ane.probes.sequences import first_calls, long_cases, steady

_LARGEST = 1 << 14
"""Longest flexible axis that is probed; the default shape is where the range is open."""
_SLIGHT = 1e-9
"""What a share of a range may be off by rounding."""
_WORDS = 8
"""Numbers of 4 bytes that are held for each one that is drawn."""
_POSITIONS = 1 << 15
"""Positions of all probes of one length each."""
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

    Inputs are drawn as the manifest's `tables` say, else as the programs imply: at the smallest, a
    middle and the largest length of flexible axes, once between these, and at all enumerated
    shapes. Further probes draw the ids that are left, where 256 calls can. States are probed over
    sequences of calls. Where one axis of an output is as long as the call has positions, these are
    compared one by one.

    `BudgetError` for inputs larger than memory, `ProgramError` for inputs that cannot be drawn.
    """
    draws, oracle = _draws(backend, artifact, reference, probes, tables, function)
    cases = [*draws.cases(TURNS if draws.states else TURNS[:1], cover=True)]
    if cases and "massive" in probes.kinds:
        cases += _massive_cases(oracle, cases[0], draws)
    answers = [_answers(oracle, case) for case in cases] if reference is not None else []
    longer = [*draws.long_cases()] if cases and draws.states else []
    # States of another form than the reference's cannot be handed on.
    alike = draws.states == _kept(oracle.model.states)
    if reference is not None and cases and draws.states and alike:
        for others in _other_functions(backend, reference, probes, tables or {}, oracle):
            longer += draws.cases_after(*others, oracle)
    for long in longer:
        growing = not draws.leads.states
        outputs = steady(oracle, long, growing=growing, judged=growing or reference is not None)
        if outputs:
            made = len(outputs)
            cases.append(replace(long, calls=long.calls[:made], spans=long.spans[:made]))
            answers.append((outputs, {}))
    return cases if reference is None else draws.compared(cases, answers)


def length_cases(
    artifact: Path,
    reference: Path,
    probes: Probes,
    tables: Mapping[str, Input] | None = None,
    function: str | None = None,
) -> list[Case]:
    """A probe of every length of a package's flexible axis, with a reference's outputs in float32.

    Of long axes as many are left out, evenly, as 32,768 positions allow; which ones the seed says.
    """
    backend = CpuBackend("float32")
    draws, oracle = _draws(backend, artifact, reference, probes, tables, function)
    cases = [*draws.length_cases()]
    return draws.compared(cases, [_answers(oracle, case) for case in cases])


def _draws(
    backend: Backend,
    artifact: Path,
    reference: Path | None,
    probes: Probes,
    tables: Mapping[str, Input] | None,
    function: str | None,
) -> tuple[_Draws, Runner]:
    """What a package is probed with, and what answers: the reference, or else itself."""
    oracle = runner = backend.load(artifact, function)
    model = read_any(artifact, weights=False, function=function)
    known = domains(runner.model.inputs, tables or {}, artifact, reference, function)
    leads = slots(artifact, known, function)
    counts = leads.states
    if reference is not None:
        theirs = counterpart(reference, function)
        oracle, leads = backend.load(reference, theirs), slots(reference, known, theirs)
    held = {name: min(count, leads.end or count) for name, count in counts.items()}
    sampler, kinds = Sampler(runner.model.inputs, artifact, known), output_kinds(model)
    about = {"domains": known, "kinds": kinds, "slots": held}
    return _Draws(sampler, probes, leads, _kept(model.states), about), oracle


def _massive_cases(oracle: Runner, drawn: Case, draws: _Draws) -> Iterator[Case]:
    """A drawn call with one channel of the residual path at sizes whose squares overflow fp16.

    That is an input of unknown range that has an output of its shape; its longest axis is that of
    channels.
    """
    call, known, seed = drawn.calls[0], draws.sampler.domains, draws.probes.seed
    shapes = {np.shape(x) for x in oracle.predict(call, oracle.make_state()).values()}
    free = [n for n, x in call.items() if known[n].input is None and x.shape in shapes]
    if not free:
        raise ProgramError(
            f"{draws.sampler.subject}: has no input that is as large as an output, and 'massive' "
            "channels are those of a residual path; leave it out of probes.kinds."
        )
    stream = call[free[0]]
    axis = int(np.argmax(stream.shape))
    channel = int(generator(seed, "massive", *stream.shape).random_raw()) % stream.shape[axis]
    for size in MASSIVE:
        entering = stream.copy()
        np.moveaxis(entering, axis, 0)[channel] = size
        calls, name = ({**call, free[0]: entering},), f"massive at {size:,}"
        yield replace(drawn, kind="massive", name=name, calls=calls, spans=drawn.spans[:1])


def _beside_massive(case: Case, outputs: Arrays) -> Case:
    """The case with outputs of the residual path alone, without the channel that sticks out."""
    floats = (x for x in case.calls[0].values() if x.dtype.kind == "f")
    at = next(x for each in floats if (x := np.isin(each, MASSIVE)).any())
    kept = {n: case.expected[n] for n, x in outputs.items() if np.shape(x) == at.shape}
    rows = [case.rows({name: at.astype(np.float32)})[name] for name in kept]
    columns = {int(i) for each in rows for i in np.flatnonzero(each.any(axis=0))}
    return replace(case, expected=kept, left_out=tuple(sorted(columns)))


_Answer: TypeAlias = tuple[Sequence[Arrays], Mapping[str, bool]]


def _answers(oracle: Runner, case: Case) -> _Answer:
    """A package's outputs of each call, and which states the last call's depend on."""
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

    return outputs, {name: not forgets(name) for name in kept}


def seeded_inputs(
    inputs: tuple[Feature, ...],
    artifact: Path,
    seed: int,
    tables: Mapping[str, Input] | None = None,
    *,
    function: str | None = None,
    smallest: bool = False,
) -> dict[str, Array]:
    """A Gaussian probe of `package_cases` by input name, of the largest or smallest shape."""
    probes = Probes(kinds=("gaussian",), count=1, seed=seed)
    sampler = Sampler(inputs, artifact, domains(inputs, tables or {}, artifact, function=function))
    first, *more = _Draws(sampler, probes, Slots(), {}, {}).cases((0,))
    case = first if smallest or not more else more[-1]
    return dict(*case.calls)


@dataclass(frozen=True)
class _Draws:
    """What a package with these states is probed with.

    Attributes:
        leads: where positions lead in the package that answers.
        about: domains, kinds and slots, of every case.
    """

    sampler: Sampler
    probes: Probes
    leads: Slots
    states: Mapping[str, tuple[int, ...]]
    about: Mapping[str, Any]

    def cases(self, turns: Sequence[int], *, cover: bool = False) -> Iterator[Case]:
        """Every kind and number at the ends of axes; to `cover` them also between, and all ids."""
        inputs, probes = self.sampler.features, self.probes
        for feature in inputs:
            if feature.kind not in ("tensor", *NUMBERS) and not mode(feature):
                raise ProgramError(
                    f"{self.sampler.subject}: input {feature.name!r} is of kind {feature.kind}; "
                    "tensors, numbers and images are probed."
                )
        kinds, ends = [kind for kind in probes.kinds if kind in KINDS], _ends(inputs)
        plan = [*product(kinds, ends.items(), range(probes.count))]
        yield from (self._case(*each, turns) for each in plan)
        if cover and plan:
            kind, end, last = plan[-1]
            between = _between(inputs, probes.seed)
            yield from (self._case(kind, each, 0, turns) for each in between.items())
            done = (len(plan) + len(between)) * len(turns)
            left = self.sampler.calls_left(self._shapes(end[1]), _MOST_CALLS - done)
            more = range(last + 1, last + 1 + math.ceil(left / len(turns)))
            yield from (self._case(kind, end, number, turns) for number in more)

    def length_cases(self) -> Iterator[Case]:
        """One probe of each length; `cases` has every shape of those that are enumerated."""
        extent, low = _furthest(self.sampler.features)
        if not extent or any(f.enumerated for f in self.sampler.features):
            return
        stride = math.ceil(extent * (2 * low + extent) / 2 / _POSITIONS)
        for n in range(low + self.probes.seed % stride, low + extent + 1, stride):
            yield self._case("gaussian", (f"T={n}", (n - low) / extent), 0, TURNS[:1])

    def _shapes(self, at: float) -> dict[str, tuple[int, ...]]:
        shapes = {}
        for feature in self.sampler.features:
            shape = (*_shape(feature, at), *((3,) if is_color(feature) else ()))
            where = f"{self.sampler.subject}: input {feature.name!r}"
            if 0 in shape:
                raise ProgramError(
                    f"{where} has the shape {list(shape)}, which is empty, so there is nothing to "
                    "probe; declare a length of at least 1 along every axis."
                )
            current_budget().check_tensor(where, shape, words=_WORDS)
            shapes[feature.name] = shape
        return shapes

    def _case(self, kind: str, place: tuple[str, float], number: int, turns: Sequence[int]) -> Case:
        label, at = place
        extents, probe = self._shapes(at), (self.probes.seed, kind, label)
        spans = first_calls(turns, self._step(extents), self.leads)
        calls = [
            self.sampler.call(extents, kind, probe, number, start=start, call=i)
            for i, (start, _) in enumerate(spans)
        ]
        length = max((int(np.prod(a.shape)) for a in calls[0].values()), default=0)
        name = f"{kind} {label} #{number}"
        return package_case(kind, name, calls, (), spans=spans, length=length, **self.about)

    def _step(self, shapes: Mapping[str, tuple[int, ...]]) -> int:
        return self.leads.step or self.sampler.rows(shapes)

    def long_cases(self) -> Iterator[Case]:
        """Long sequences on states."""
        ends, seed = map(self._shapes, _ends(self.sampler.features).values()), self.probes.seed

        def call(shapes: Any, number: int, at: int, i: int) -> dict[str, Array]:
            probe = (seed, "sequence")
            return self.sampler.call(shapes, "gaussian", probe, number, start=at, call=i)

        steps = {self._step(shapes): shapes for shapes in ends}
        return long_cases(seed, self.leads, steps, self.states, call, **self.about)

    def cases_after(
        self, name: str, runner: Runner, other: _Draws, oracle: Runner
    ) -> Iterator[Case]:
        """Calls on states that another function of the reference left, as after a prefill."""
        shapes, theirs = self._shapes(0.0), other._shapes(0.0)
        step, size, end = self._step(shapes), other._step(theirs), self.leads.end or math.inf
        start, probe = step + 2 * size, (self.probes.seed, "mixed", name)
        starts = [at for at in range(start, start + 3 * step, step) if at + step <= end]
        if not starts:
            return
        before, *calls = (
            self.sampler.call(shapes, "gaussian", probe, 0, start=at, call=i)
            for i, at in enumerate((0, *starts))
        )
        with suppress(ExecutionError):
            state, later = oracle.make_state(), runner.make_state()
            oracle.predict(before, state)
            kept = oracle.read_states(state)
            shared = dict(self.states.items() & other.states.items())
            runner.write_states(later, {n: kept[n] for n in shared})
            for i, at in enumerate((step, step + size)):
                call = other.sampler.call(theirs, "gaussian", probe, 0, start=at, call=i)
                runner.predict(call, later)
            yield package_case(
                "gaussian", f"after function {name}", calls, (), length=1, start=start,
                states=kept | runner.read_states(later, shared),
                spans=tuple((at, step) for at in starts), **self.about,
            )  # fmt: skip

    def compared(self, cases: Sequence[Case], answers: Sequence[_Answer]) -> list[Case]:
        """The cases with a reference's outputs of their calls, by position where there are such."""
        rows = [self.sampler.rows({n: x.shape for n, x in case.calls[0].items()}) for case in cases]
        ports = _ports(rows, [outputs[0] for outputs, _ in answers])
        made = []
        for case, (outputs, carried) in zip(cases, answers, strict=True):
            compared = package_case(
                case.kind, case.name, case.calls, outputs, ports, start=case.start,
                carried=carried, states=case.states, spans=case.spans, **self.about,
            )  # fmt: skip
            massive = case.kind == "massive"
            made.append(_beside_massive(compared, outputs[0]) if massive else compared)
        return made


def _ports(rows: Sequence[int], outputs: Sequence[Arrays]) -> list[Port]:
    """The outputs of which exactly one axis is as long as each call has positions."""
    ports = []
    for name in outputs[0] if max(rows, default=1) > 1 else ():
        shapes = [np.shape(each[name]) for each in outputs]
        along = [extents == tuple(rows) for extents in zip(*shapes, strict=True)]
        if sum(along) == 1:
            shape = zip(shapes[0], along, strict=True)
            ports.append(Port(name, tuple("T" if positions else n for n, positions in shape)))
    return ports


def _other_functions(
    backend: Backend, reference: Path, probes: Probes, tables: Mapping[str, Input], oracle: Runner
) -> Iterator[tuple[str, Runner, _Draws]]:
    """Functions of the reference that keep some of the same states."""
    if isinstance(oracle.model, Pipeline):
        return
    mine = _kept(oracle.model.states).items()
    for model in read_functions(reference):
        name, states = model.main.name, _kept(model.states)
        if name != oracle.model.main.name and mine & states.items():
            runner = backend.load(reference, name)
            own = {f.name: tables[f.name] for f in runner.model.inputs if f.name in tables}
            known = domains(runner.model.inputs, own, reference, function=name)
            sampler = Sampler(runner.model.inputs, reference, known)
            leads = slots(reference, known, name)
            yield name, runner, _Draws(sampler, probes, leads, states, {})


def unmixed(model: MLModel, reference: Path, own: str | None) -> Iterator[tuple[str, str]]:
    """Functions of a reference that seem to share a function's states, and why none is run mixed.

    States are handed on by name; the reference's function is called `own`.
    """
    theirs = {each.main.name: _kept(each.states) for each in read_functions(reference)}
    mine = theirs.pop(own or model.main.name, {})
    for name, states in theirs.items():
        alike = [
            (state, f"{other} {list(shape)}")
            for state, extents in states.items() for other, shape in mine.items()
            if (state == other) != (extents == shape)
            and (state == other or {state, other}.isdisjoint(mine.keys() & states.keys()))
        ]  # fmt: skip
        if alike:
            state, other = alike[0]
            yield name, f"its state {state} {list(states[state])} is {other} here"
        elif mine.items() & states.items() and mine != _kept(model.states):
            yield name, "the package keeps its states otherwise than the reference"


def _kept(states: Sequence[Feature]) -> dict[str, tuple[int, ...]]:
    return {state.name: state.shape for state in states}


def _ends(inputs: tuple[Feature, ...]) -> dict[str, float]:
    flexible = any(f.enumerated or any(low != high for low, high in f.ranges) for f in inputs)
    return {"smallest": 0.0, "middle": 0.5, "largest": 1.0} if flexible else {"fixed shape": 0.0}


def _between(inputs: tuple[Feature, ...], seed: int) -> dict[str, float]:
    """Every other enumerated shape, or further lengths of the axis that reaches furthest."""
    ends = _ends(inputs).values()
    shapes = max(len(f.enumerated) for f in inputs)
    if shapes > 1:
        steps = {f"shape {i + 1} of {shapes}": i / (shapes - 1) for i in range(shapes)}
    else:
        extent, low = _furthest(inputs)
        inner = (n for n in lengths(low + extent, seed) if low < n < low + extent)
        steps = {f"T={n}": (n - low) / extent for n in inner}
    return {name: at for name, at in steps.items() if at not in ends}


def _furthest(inputs: tuple[Feature, ...]) -> tuple[int, int]:
    """How far the axis reaches that reaches furthest, and its smallest length."""
    ends = (zip(_shape(f, 0.0), _shape(f, 1.0), strict=True) for f in inputs)
    axes = ((high - low, low) for shape in ends for low, high in shape)
    return max(axes, default=(0, 0))


def _shape(feature: Feature, at: float) -> tuple[int, ...]:
    if feature.enumerated:
        sizes = sorted(feature.enumerated, key=lambda shape: int(np.prod(shape)))
        return sizes[math.floor(at * (len(sizes) - 1) + _SLIGHT)]
    if not feature.ranges:
        return feature.shape
    defaults = feature.shape or (1,) * len(feature.ranges)
    highest = (
        default if high is None else min(high, max(_LARGEST, low))
        for default, (low, high) in zip(defaults, feature.ranges, strict=True)
    )
    return tuple(
        low + math.ceil(at * (high - low) - _SLIGHT)
        for (low, _), high in zip(feature.ranges, highest, strict=True)
    )
