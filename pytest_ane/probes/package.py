"""Cases of packages without a family, and of a builder's shards.

A package gets seeded inputs of the declared shapes; a builder's shard seeded arrays for every input
port, through its float32 module.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from itertools import cycle, product, starmap
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np

from pytest_ane.backends import Backend, Runner
from pytest_ane.make import Cache
from pytest_ane.manifest import Input, Probes, Shard
from pytest_ane.manifest.inputs import questions
from pytest_ane.mlprogram.arrays import Array, Arrays, FloatArray
from pytest_ane.mlprogram.digests import key_digest
from pytest_ane.mlprogram.errors import BuildError, ExecutionError, ProgramError
from pytest_ane.mlprogram.executor.budget import current_budget
from pytest_ane.mlprogram.executor.interface import is_color, mode
from pytest_ane.mlprogram.metrics.tensors import relative_l2
from pytest_ane.mlprogram.model import counterpart, read_any, read_functions
from pytest_ane.mlprogram.records import NUMBERS, DType, Feature, MLModel, Pipeline
from pytest_ane.models.families import Conversion, Inputs, Port
from pytest_ane.models.families.own import error_line
from pytest_ane.probes.cases import (
    TURNS,
    Calls,
    Case,
    Kinds,
    as_array,
    flexible_axis,
    output_kinds,
    package_case,
    with_prefix,
)
from pytest_ane.probes.domains import (
    SAMPLER,
    Sampler,
    Slots,
    check_names,
    domains,
    from_manifest,
    slots,
)
from pytest_ane.probes.inputs import Domain, kind_axes
from pytest_ane.probes.recording import RECORDING_VERSION, load, load_ports, save
from pytest_ane.probes.seeded import GENERATOR, KINDS, MASSIVE, gaussian, generator, lengths, pick

_LARGEST = 1 << 14
"""Longest flexible axis that is probed; the default shape is where the range is open."""
_SLIGHT = 1e-9
"""What a share of a range may be off by rounding."""
_WORDS = 8
"""Numbers of 4 bytes that are held for each one that is drawn."""
_LONG, _BEYOND, _KEYS = 40, 4, 8
"""Calls of long sequences, positions beyond the last slot where they go round, and keys of one."""
_DISTURBED, _DECIDED, _GROWN = 0.01, 0.1, 32.0
"""What states are disturbed by, what that may make of an output, and how far states may grow."""
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

    Inputs are drawn as `tables` says, which is the manifest's, else as the programs imply. Flexible
    axes are probed at their smallest, a middle and their largest length, and once between these;
    enumerated shapes are all probed. Further probes of the largest draw the ids that are left,
    where 256 calls can. A package with states is probed over sequences of calls on one state, the
    last of which goes back, and over long `sequences`. Where one axis of an output is as
    long as the call has positions, these are compared one by one.

    `BudgetError` for inputs larger than memory, `ProgramError` for inputs that cannot be drawn.
    """
    runner = backend.load(artifact, function)
    model = read_any(artifact, weights=False, function=function)
    known = domains(runner.inputs, tables or {}, artifact, reference, function)
    sampler, kinds = Sampler(runner.inputs, artifact, known), output_kinds(model)
    oracle, leads = runner, slots(artifact, known, function)
    counts = leads
    if reference is not None:
        theirs = counterpart(reference, function)
        oracle, leads = backend.load(reference, theirs), slots(reference, known, theirs)
    turns = TURNS if model.states else TURNS[:1]
    cases = [*_cases(sampler, probes, turns, kinds, leads, cover=True)]
    if cases and "massive" in probes.kinds:
        cases += _massive_cases(oracle, cases[0], known, artifact, probes.seed)
    answers = [_answers(oracle, case) for case in cases] if reference is not None else []
    long_cases = [*_long_cases(sampler, probes, leads, model.states, kinds)] if cases else []
    if reference is not None and model.states and cases:
        others = _other_functions(backend, reference, tables or {}, oracle)
        long_cases += _mixed_cases(sampler, probes, leads, oracle, others, model.states, kinds)
    for long in long_cases:
        growing = not leads.states
        outputs = _steady(oracle, long, growing=growing, judged=growing or reference is not None)
        if outputs:
            made = len(outputs)
            cases.append(replace(long, calls=long.calls[:made], spans=long.spans[:made]))
            answers.append((outputs, {}))
    held = {n: min(count, leads.end or count) for n, count in counts.states.items()}
    cases = [replace(case, slots=held) for case in cases]
    if reference is None:
        return cases
    rows = [sampler.rows({n: x.shape for n, x in case.calls[0].items()}) for case in cases]
    ports = _ports(rows, [outputs[0] for outputs, _ in answers])
    compared = [
        package_case(
            case.kind, case.name, case.calls, outputs, ports, start=case.start, carried=carried,
            states=case.states, spans=case.spans, slots=case.slots, domains=case.domains,
            kinds=kinds,
        )
        for case, (outputs, carried) in zip(cases, answers, strict=True)
    ]  # fmt: skip
    return [
        _beside_massive(case, outputs[0]) if case.kind == "massive" else case
        for case, (outputs, _) in zip(compared, answers, strict=True)
    ]


def _massive_cases(
    oracle: Runner, drawn: Case, known: Mapping[str, Domain], artifact: Path, seed: int
) -> Iterator[Case]:
    """A drawn call with one channel of the residual path at sizes whose squares overflow fp16.

    That is an input of unknown range that has an output of its shape; its longest axis is that of
    channels.
    """
    call = drawn.calls[0]
    shapes = {np.shape(x) for x in oracle.predict(call, oracle.make_state()).values()}
    free = [n for n, x in call.items() if known[n].input is None and x.shape in shapes]
    if not free:
        raise ProgramError(
            f"{artifact}: has no input that is as large as an output, and 'massive' channels are "
            "those of a residual path; leave it out of probes.kinds."
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


def _answers(oracle: Runner, case: Case) -> tuple[Sequence[Arrays], dict[str, bool]]:
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


def _steady(
    oracle: Runner | _Module, case: Case, *, growing: bool, judged: bool = True
) -> list[Arrays]:
    """A package's outputs of the calls of a long sequence that tell something.

    They end before a call that it refuses and, where `judged`, before one that gives NaN or makes a
    state 32 times as large as the first ones did: random numbers in a mask's place do. Where
    positions lead nowhere, `growing`, they also end where a hundredth of the states has grown to a
    tenth of an output, as it may in a recurrence on random inputs: there rounding alone decides.
    """
    outputs: list[Arrays] = []
    try:
        states = [oracle.make_state(), *([oracle.make_state()] if growing else [])]
        for state in states:
            oracle.write_states(state, case.states)
        largest = 0.0
        for number, call in enumerate(case.calls):
            if number == len(TURNS) and growing:
                kept = oracle.read_states(states[0])
                noise = ((name, gaussian(generator(name), (x.size,))) for name, x in kept.items())
                other = {n: kept[n] * (1 + _DISTURBED * x.reshape(kept[n].shape)) for n, x in noise}
                oracle.write_states(states[1], other)
            mine, *others = [
                oracle.predict(call, state)
                for state in (states if number >= len(TURNS) else states[:1])
            ]
            values = oracle.read_states(states[0]).values()
            size = max((float(np.abs(x).max(initial=0.0)) for x in values), default=0.0)
            if number < len(TURNS):
                largest = max(size, largest)
            elif judged and not size <= _GROWN * largest:
                break
            if judged and not all(np.isfinite(as_array(x)).all() for x in mine.values()):
                break
            if any(_apart(mine, x) > _DECIDED for x in others):
                break
            outputs.append(mine)
    except (BuildError, ExecutionError):
        pass
    return outputs


def _apart(mine: Arrays, others: Arrays) -> float:
    """The largest relative L2 distance of an output; infinite for what is not finite."""
    pairs = ((as_array(others[n]), as_array(x)) for n, x in mine.items())
    apart = [float(relative_l2(a.reshape(1, -1), b.reshape(1, -1))[0]) for a, b in pairs]
    return max((x if np.isfinite(x) else np.inf for x in apart), default=0.0)


def sequences(seed: int, steps: Sequence[int], leads: Slots) -> list[tuple[Calls, bool]]:
    """The calls of long sequences, each on states of its own, and whether these are filled before.

    Calls of `steps` positions reach every slot, and beyond the last where positions go round. They
    are dealt out to sequences of few keys, each over the whole length: among many the loss of one
    is less than what compression does. The first goes back to 0, as a second text on a used state
    does; one more has two starts that are drawn. Where 40 calls do not reach every slot, those
    between are left out, and filled states have the last calls and the drawn ones once more.
    Without slots it is one sequence of 40 calls, the last two of which begin anew.
    """
    least = min(steps)
    again = ((0, least), (least, least))
    if not leads.count:
        return [((*((i * least, least) for i in range(_LONG - len(again))), *again), False)]
    end = leads.count + max(least, _BEYOND) if leads.end is None else leads.end
    order = steps if len(steps) == 1 else (max(steps), least, least, *steps[1:-1])
    calls: list[tuple[int, int]] = []
    for step in cycle(order):
        at = sum(calls[-1]) if calls else 0
        if at >= end or end < least:
            break
        fits = step if at + step <= end else least
        calls.append((min(at, end - fits), fits))
    if not calls:
        return []
    starts = pick(seed, "starts", range(end - least + 1))
    chosen = (*((at, least) for at in starts), *calls[-2:])
    if whole := len(calls) <= _LONG:
        some = calls
    else:
        some = [calls[i * (len(calls) - 1) // (_LONG - 1)] for i in range(_LONG)]
    every = -(-len(some) // max(2, _KEYS * len(calls) // max(1, sum(n for _, n in calls))))
    dealt = [tuple(some[i::every]) for i in range(every)]
    first = tuple(call for call in again if sum(call) <= end)
    rest = [] if whole else [((*chosen[:-2], *calls[-_KEYS:], *first), True)]
    return [((*dealt[0], *first), False), *((each, False) for each in (*dealt[1:], chosen)), *rest]


def _ports(rows: Sequence[int], outputs: Sequence[Arrays]) -> list[Port]:
    """The outputs of which exactly one axis is as long as each call has positions."""
    ports = []
    for name in outputs[0] if max(rows) > 1 else ():
        shapes = [np.shape(each[name]) for each in outputs]
        along = [extents == tuple(rows) for extents in zip(*shapes, strict=True)]
        if sum(along) == 1:
            shape = zip(shapes[0], along, strict=True)
            ports.append(Port(name, tuple("T" if positions else n for n, positions in shape)))
    return ports


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

    Inputs are drawn, and refused, as by `package_cases`.
    """
    probes = Probes(kinds=("gaussian",), count=1, seed=seed)
    sampler = Sampler(inputs, artifact, domains(inputs, tables or {}, artifact, function=function))
    first, *more = _cases(sampler, probes)
    case = first if smallest or not more else more[-1]
    return dict(*case.calls)


def _cases(
    sampler: Sampler,
    probes: Probes,
    turns: Sequence[int] = (0,),
    kinds: Kinds = Kinds(),  # noqa: B008 - frozen
    leads: Slots = Slots(),  # noqa: B008 - frozen
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
        spans = _turns(turns, leads.step or sampler.rows(extents), leads)
        sequence = [
            sampler.call(extents, kind, probe, number, start=start, call=i)
            for i, (start, _) in enumerate(spans)
        ]
        length = max((int(np.prod(a.shape)) for a in sequence[0].values()), default=0)
        name, known = f"{kind} {label} #{number}", sampler.domains
        return package_case(
            kind, name, sequence, (), length=length, spans=spans, domains=known, kinds=kinds
        )

    plan = [*product([kind for kind in probes.kinds if kind in KINDS], ends, range(probes.count))]
    yield from starmap(case, plan)
    if cover and plan:
        kind, label, last = plan[-1]
        between = _between(inputs, probes.seed)
        ends |= between
        yield from (case(kind, name, 0) for name in between)
        done = (len(plan) + len(between)) * len(turns)
        left = sampler.calls_left(shapes(label), _MOST_CALLS - done)
        more = range(last + 1, last + 1 + math.ceil(left / len(turns)))
        yield from (case(kind, label, number) for number in more)


def _turns(turns: Sequence[int], step: int, leads: Slots) -> Calls:
    end = math.inf if leads.end is None else max(0, leads.end - step)
    return tuple((int(min(turn * step, end)), step) for turn in turns)


def _long_cases(
    sampler: Sampler, probes: Probes, leads: Slots, states: Sequence[Feature], kinds: Kinds
) -> Iterator[Case]:
    """Long sequences of a package with states; what states are filled with is normal, RMS 1."""
    shapes = {
        leads.step or sampler.rows(each): each
        for at in _ends(sampler.features).values()
        for each in [{f.name: _shape_of(f, sampler.subject, at) for f in sampler.features}]
    }
    kind, seed = "gaussian", probes.seed
    planned = sequences(seed, sorted(shapes), leads) if states else []
    for number, (spans, filled) in enumerate(planned, start=1):
        calls = [
            sampler.call(shapes[length], kind, (seed, "sequence"), number, start=start, call=i)
            for i, (start, length) in enumerate(spans)
        ]
        content = {
            state.name: gaussian(generator(seed, "state", state.name), state.shape)
            for state in (states if filled else ())
        }
        yield package_case(
            kind, _spanning(number, spans, leads), calls, (), length=1, states=content,
            start=min(spans)[0], spans=spans, domains=sampler.domains, kinds=kinds,
        )  # fmt: skip


def _spanning(number: int, spans: Calls, leads: Slots) -> str:
    first, last = min(spans)[0], max(map(sum, spans)) - 1
    named = f"sequence {number}, positions {first} to {last}"
    return named if leads.count else f"sequence of {len(spans)} calls"


@dataclass(frozen=True)
class _Function:
    """Another function of the reference that keeps the same states."""

    name: str
    runner: Runner
    sampler: Sampler
    step: int | None
    shared: frozenset[str]


def _other_functions(
    backend: Backend, reference: Path, tables: Mapping[str, Input], oracle: Runner
) -> Iterator[_Function]:
    if isinstance(oracle.model, Pipeline):
        return
    for model in read_functions(reference):
        name, mine = model.main.name, _kept(oracle.model.states)
        shared = {n for n, shape in _kept(model.states).items() if mine.get(n) == shape}
        if name != oracle.model.main.name and shared:
            runner = backend.load(reference, name)
            own = {f.name: tables[f.name] for f in runner.inputs if f.name in tables}
            known = domains(runner.inputs, own, reference, function=name)
            sampler = Sampler(runner.inputs, reference, known)
            step = slots(reference, known, name).step
            yield _Function(name, runner, sampler, step, frozenset(shared))


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


def _mixed_cases(
    sampler: Sampler,
    probes: Probes,
    leads: Slots,
    oracle: Runner,
    others: Iterable[_Function],
    states: Sequence[Feature],
    kinds: Kinds,
) -> Iterator[Case]:
    """Calls on states that the reference's other functions left, as decoding after a prefill does.

    Before them there is a call of the function itself. Where the artifact keeps its states in
    another form than the reference there are none.
    """
    if _kept(states) != _kept(oracle.model.states):
        return
    seed, kind = probes.seed, "gaussian"
    shapes = {f.name: _shape_of(f, sampler.subject, 0.0) for f in sampler.features}
    step = leads.step or sampler.rows(shapes)
    for other in others:
        theirs = {f.name: _shape_of(f, other.sampler.subject, 0.0) for f in other.sampler.features}
        size, probe = other.step or other.sampler.rows(theirs), (seed, "mixed", other.name)
        start = step + 2 * size
        if leads.end is not None and start + step > leads.end:
            continue
        fits = [start + i * step for i in range(3)]
        spans = tuple((at, step) for at in fits if leads.end is None or at + step <= leads.end)
        before, *calls = (
            sampler.call(shapes, kind, probe, 0, start=at, call=i)
            for i, at in enumerate((0, *(at for at, _ in spans)))
        )
        with suppress(ExecutionError):
            state, later = oracle.make_state(), other.runner.make_state()
            oracle.predict(before, state)
            kept = oracle.read_states(state)
            other.runner.write_states(later, {n: kept[n] for n in other.shared})
            for i, at in enumerate((step, step + size)):
                call = other.sampler.call(theirs, kind, probe, 0, start=at, call=i)
                other.runner.predict(call, later)
            yield package_case(
                kind, f"after function {other.name}", calls, (), length=1, start=start,
                states=kept | other.runner.read_states(later, other.shared), spans=spans,
                domains=sampler.domains, kinds=kinds,
            )  # fmt: skip


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
        ends_of = (zip(_shape(f, 0.0), _shape(f, 1.0), strict=True) for f in inputs)
        axes = [(high - low, low) for shape in ends_of for low, high in shape]
        extent, low = max(axes, default=(0, 0))
        inner = (n for n in lengths(low + extent, seed) if low < n < low + extent)
        steps = {f"T={n}": (n - low) / extent for n in inner}
    return {name: at for name, at in steps.items() if at not in ends}


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


def builder_cases(folder: Path, tables: Mapping[str, Input] = MappingProxyType({})) -> list[Case]:
    """A shard's seeded probes, at several T where it is flexible, with its reference's outputs.

    `tables` are the manifest's, of inputs that were drawn so when the probes were recorded.
    """
    tensors, metadata = load(folder)
    ports = load_ports(folder).outputs
    domains = {name: from_manifest(spec) for name, spec in tables.items()}
    return [
        package_case(
            kind,
            name,
            [with_prefix(tensors, f"{i}.{call}.in.") for call in range(calls)],
            [with_prefix(tensors, f"{i}.{call}.out.") for call in range(calls)],
            ports,
            length=length,
            start=min(spans, default=[0])[0],
            carried=carried,
            states=with_prefix(tensors, f"{i}.state."),
            spans=tuple((at, size) for at, size in spans),
            slots=metadata["slots"],
            domains=domains,
            same_module=metadata["same_module"],
        )
        for i, (kind, name, length, calls, carried, spans) in enumerate(metadata["probes"])
    ]


def record_builder(
    cache: Cache, identity: dict[str, Any], shard: Shard, conversion: Callable[[], Conversion]
) -> Path:
    """The entry with probes `{i}.{call}.in.NAME`, outputs `{i}.{call}.out.NAME`, and metadata.

    `conversion` is called only when there is no recording yet. `BuildError` where the reference
    fails, `ProgramError` where the manifest's inputs do not fit.
    """
    key = {
        **identity,
        "recording": [RECORDING_VERSION, GENERATOR],
        "shard": shard.id,
        "max": shard.max_tokens,
        "probes": shard.probes.model_dump(mode="json"),
        "inputs": [SAMPLER, questions(shard.inputs)],
    }

    def make(folder: Path) -> None:
        built = conversion()
        oracle, draws = _Module(built, shard.qualified), _Draws(shard, built)
        leads = draws.slots(oracle) if oracle.keeps else Slots()
        tensors: dict[str, FloatArray] = {}
        listed: list[list[Any]] = []

        def keep(case: Case, outputs: Sequence[Arrays], carried: Mapping[str, bool]) -> None:
            i, made = len(listed), len(outputs)
            parts = {f"{i}.state": case.states}
            for call, results in enumerate(outputs):
                parts |= {f"{i}.{call}.in": case.calls[call], f"{i}.{call}.out": results}
            tensors.update({f"{at}.{n}": x for at, part in parts.items() for n, x in part.items()})
            listed.append([case.kind, case.name, case.length, made, carried, case.spans[:made]])

        for case in draws.cases(leads):
            state = oracle.make_state()
            outputs = [oracle.predict(call, state) for call in case.calls]
            keep(case, outputs, oracle.carried(case.calls[-1], outputs[-1]))
        for case in draws.long_cases(leads) if oracle.keeps and listed else ():
            if steady := _steady(oracle, case, growing=not leads.states):
                keep(case, steady, {})
        same = built.reference in (None, built.module)
        about = {"shard": shard.qualified, "probes": listed, "ports": asdict(built.ports)}
        save(folder, tensors, about | {"same_module": same, "slots": dict(leads.states)})

    return cache.get_or_make("recordings", key_digest(key), make, shard.qualified)


class _Draws:
    """What a builder's shard is probed with: its ports, or what the manifest says of them."""

    def __init__(self, shard: Shard, built: Conversion) -> None:
        self._shard, self._built = shard, built
        self._sampler = _sampler(shard, built.inputs)
        self._flexible = any("T" in port.shape for port in built.inputs)
        self._largest = shard.max_tokens if self._flexible else 1

    def cases(self, leads: Slots) -> Iterator[Case]:
        """Each drawn kind and number at several T, with states over four calls."""
        probes = self._shard.probes
        turns = TURNS if self._built.states else TURNS[:1]
        for kind in (kind for kind in probes.kinds if kind in KINDS):
            for length in lengths(self._largest, probes.seed):
                for number in range(probes.count if length in (1, self._largest) else 1):
                    seed = (probes.seed, kind, length, number)
                    spans = _turns(turns, self._step(length), leads)
                    calls = [
                        self._call(kind, seed, length, at, i) for i, (at, _) in enumerate(spans)
                    ]
                    name, whole = f"{kind} T={length} #{number}", length * len(calls)
                    yield package_case(kind, name, calls, (), length=whole, spans=spans)

    def long_cases(self, leads: Slots) -> Iterator[Case]:
        """Long `sequences`, with states over their whole length."""
        kind, seed = "gaussian", self._shard.probes.seed
        steps = {self._step(length): length for length in sorted({1, self._largest})}
        for number, (spans, filled) in enumerate(sequences(seed, sorted(steps), leads), start=1):
            calls = [
                self._call(kind, (seed, "sequence", steps[step], number), steps[step], at, i)
                for i, (at, step) in enumerate(spans)
            ]
            content = {
                port.name: gaussian(generator(seed, "state", port.name), shape)
                for port in (self._built.states if filled else ())
                for shape in [_port_shape(port, 1)]
            }
            yield package_case(
                kind, _spanning(number, spans, leads), calls, (), length=1, states=content,
                spans=spans,
            )  # fmt: skip

    def slots(self, oracle: _Module) -> Slots:
        """Where positions lead: as the manifest's masks say, or beyond what nothing is kept."""
        specs, shapes = self._shard.inputs, self._shapes(self._largest)
        states = {port.name: set(map(int, port.shape)) for port in self._built.states}
        end, found = None, []
        for port in self._built.inputs:
            shape, spec = shapes[port.name], specs.get(port.name)
            if spec and spec.kind in ("one-hot", "causal-mask"):
                axes = kind_axes(shape, spec.axis, spec.position_axis, flexible_axis(port))
                found.append(shape[axes.own])
        if not found and any(spec.kind == "positions" for spec in specs.values()):
            step = self._step(1)
            found = [
                n for n in sorted(set().union(*states.values()))
                if n > step and self._keeps(oracle, n - step) and not self._keeps(oracle, n)
            ]  # fmt: skip
            end = max(found, default=None)
        return Slots({n: max(found) for n, sizes in states.items() if sizes & {*found}}, end)

    def _keeps(self, oracle: _Module, start: int) -> bool:
        """Whether a call at a position leaves anything in the states."""
        state, seed = oracle.make_state(), (self._shard.probes.seed, "slots", 1, 0)
        before = oracle.read_states(state)
        with suppress(BuildError):
            oracle.predict(self._call("gaussian", seed, 1, start, 0), state)
        return any(not np.array_equal(before[n], x) for n, x in oracle.read_states(state).items())

    def _step(self, length: int) -> int:
        return length if self._flexible else self._sampler.positions(self._shapes(length))

    def _shapes(self, length: int) -> dict[str, tuple[int, ...]]:
        return {port.name: _port_shape(port, length) for port in self._built.inputs}

    def _call(
        self, kind: str, seed: tuple[Any, ...], length: int, start: int, call: int
    ) -> dict[str, Array]:
        ports, number = self._built.inputs, seed[-1]
        drawn = {
            p.name: _array(p, kind, length, (*seed, p.name, *filter(None, [call]))) for p in ports
        }
        shapes = self._shapes(length)
        return drawn | self._sampler.call(shapes, kind, seed[:3], number, start=start, call=call)


def _sampler(shard: Shard, ports: Sequence[Port]) -> Sampler:
    check_names(shard.qualified, shard.inputs, [port.name for port in ports])
    features = (
        Feature(p.name, DType.FP16, (), tuple(
            (1, shard.max_tokens) if n == "T" else (int(n), int(n)) for n in p.shape
        ))
        for p in ports if p.name in shard.inputs
    )  # fmt: skip
    domains = {name: from_manifest(spec) for name, spec in shard.inputs.items()}
    return Sampler(tuple(features), shard.qualified, domains)


def _array(port: Port, kind: str, length: int, seed: tuple[object, ...]) -> FloatArray:
    """A probe drawn position by position, so that `unit-norm` means each position's norm."""
    shape = _port_shape(port, length)
    axis = flexible_axis(port)
    rows = 1 if axis is None else length
    drawn = KINDS[kind](generator(*seed), (rows, math.prod(shape) // rows))
    if axis is None:
        return drawn.reshape(shape)
    others = (*shape[:axis], *shape[axis + 1 :])
    return np.ascontiguousarray(np.moveaxis(drawn.reshape(length, *others), 0, axis))


class _Module:
    """A builder's float32 reference, run as a package is; its states are its buffers."""

    def __init__(self, built: Conversion, subject: str) -> None:
        import torch

        self._built, self._subject = built, subject
        module = built.reference or built.module.float().eval()
        # A reference of the builder's own may be any function; such a one keeps no state.
        buffers = module.named_buffers() if isinstance(module, torch.nn.Module) else ()
        self._module, self._buffers = module, dict(buffers)
        self._fresh = {name: buffer.clone() for name, buffer in self._buffers.items()}
        self._states = [port.name for port in built.states if port.name in self._buffers]
        self.keeps = bool(self._states) and len(self._states) == len(built.states)

    def make_state(self) -> dict[str, Any]:
        """Its buffers; those that become states are zero, as Core ML's are."""
        state = {name: buffer.clone() for name, buffer in self._fresh.items()}
        for port in self._built.states if self._built.reference is None else ():
            state[port.name].zero_()
        return state

    def read_states(self, state: dict[str, Any]) -> dict[str, Array]:
        return {name: state[name].numpy().copy() for name in self._states}

    def write_states(self, state: dict[str, Any], values: Arrays) -> None:
        import torch

        for name, kept in values.items():
            state[name].copy_(torch.from_numpy(kept))

    def predict(self, inputs: Arrays, state: dict[str, Any]) -> dict[str, FloatArray]:
        """Outputs by port; `BuildError` where it fails, or gives other shapes than it says."""
        import torch

        length = next((
            inputs[p.name].shape[p.shape.index("T")] for p in self._built.inputs if "T" in p.shape
        ), 1)  # fmt: skip
        with torch.no_grad():
            for name, buffer in self._buffers.items():
                buffer.copy_(state[name])
            try:
                return self._outputs(inputs, length)
            finally:
                for name, buffer in self._buffers.items():
                    state[name].copy_(buffer)
                    buffer.copy_(self._fresh[name])

    def _outputs(self, inputs: Arrays, length: int) -> dict[str, FloatArray]:
        import torch

        tensors = [torch.from_numpy(inputs[port.name]) for port in self._built.inputs]
        try:
            result = self._module(*tensors)
        except Exception as error:
            message = error_line(error, type(self._module).__module__)
            raise BuildError(
                f"{self._subject}: its float32 reference failed: {message}."
            ) from error
        outputs = result if isinstance(result, tuple | list) else (result,)
        shapes = [tuple(getattr(output, "shape", ())) for output in outputs]
        declared = [_port_shape(port, length) for port in self._built.outputs]
        if shapes != declared:
            raise BuildError(
                f"{self._subject}: at T = {length} its reference gives {_listed(shapes)}, and its "
                f"output ports say {_listed(declared)}."
            )
        named = zip(self._built.outputs, outputs, strict=True)
        return {p.name: torch.as_tensor(x).to(torch.float32).numpy().copy() for p, x in named}

    def carried(self, last: Inputs, outputs: Inputs) -> dict[str, bool]:
        """Whether the last call's outputs are others on fresh states; nobody tells them apart."""
        if not self._built.states:
            return {}
        fresh = self.predict(last, self.make_state())
        differs = any(not np.array_equal(fresh[n], x, equal_nan=True) for n, x in outputs.items())
        return {port.name: differs for port in self._built.states}


def _port_shape(port: Port, length: int) -> tuple[int, ...]:
    return tuple(length if size == "T" else int(size) for size in port.shape)


def _listed(shapes: Sequence[tuple[int, ...]]) -> str:
    return ", ".join(str(list(shape)) for shape in shapes)
