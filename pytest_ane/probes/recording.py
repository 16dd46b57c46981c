"""A family shard's probes, and recorded references: the float32 model's outputs for each probe.

Probes are hidden states. The reference costs torch and the source's weights; its outputs cost one
small file. They are keyed by everything they depend on, so a warm gate runs the artifact afresh and
loads neither.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from functools import cache
from itertools import accumulate, cycle, pairwise, takewhile
from pathlib import Path
from typing import Any, Literal, TypeAlias

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from pytest_ane.make import Cache
from pytest_ane.manifest import Shard
from pytest_ane.mlprogram.arrays import Arrays, FloatArray
from pytest_ane.mlprogram.digests import key_digest
from pytest_ane.mlprogram.errors import CacheError, ManifestError, SourceError
from pytest_ane.models.families import (
    LanguageModel,
    Layout,
    Port,
    Ports,
    Routes,
    Wire,
    apply_output,
    optional,
    ports_of,
    shard_input,
    trait,
)
from pytest_ane.models.families.registry import get_family
from pytest_ane.probes.cases import Calls, Case, with_prefix
from pytest_ane.probes.seeded import (
    FP16_EDGE,
    GENERATOR,
    MASSIVE,
    Captured,
    above_powers,
    gaussian,
    generator,
    lengths,
    massive,
    pick,
    seeded,
    segmented,
)

_STEPS = 8
"""Positions, at least, of a seeded probe of a shard with states; two calls of T take 2 T."""
_RAGGED = (1, 2, 3, 5, 8, 4, 1, 16, 33, 48, 64, 7, 9, 17)
"""T of the calls of a `ragged` probe, as far as the shard takes them."""
_CYCLES = 3
"""A context of more than so many rounds of these calls is probed at its start, middle and end."""
_DRAWN, _BEFORE = 8, 4
"""Calls of one position, at most, from a drawn start on; positions before it."""
_REWRITTEN, _AGAIN = 12, 10
"""Positions of a `rewrite` probe before it goes back, and after."""

CapturedStates: TypeAlias = Callable[[], Sequence[tuple[str, FloatArray]]]
"""Golden prompts by name with the hidden states `[T, C]` that enter the shard."""


@dataclass(frozen=True, eq=False)
class HiddenProbe:
    """Hidden states `[T, C]` with the reference's outputs for them.

    Attributes:
        start: position in a prompt at which they begin.
        calls: on one state. One that goes back overwrites what follows its first position.
        hidden: `[R, C]`, the rows of all calls.
        expected: `[T, C']` of the sequence as it stands after the last call; empty before.
        residual: `[T, C']` of it that is the residual path alone, where there is one.
        routed, left_out, undecided, states, same_module: as of a `Case`.
        before: positions of the same sequence that `states` hold.
    """

    kind: str
    name: str
    start: int
    calls: Calls
    hidden: FloatArray
    expected: FloatArray = field(default_factory=lambda: np.zeros((0, 0), np.float32))
    residual: FloatArray | None = None
    routed: Routes = ()
    left_out: tuple[int, ...] = ()
    undecided: tuple[int, ...] = ()
    states: Arrays = field(default_factory=dict)
    before: int = 0
    same_module: bool = False

    @property
    def sequence(self) -> FloatArray:
        """Hidden states `[T, C]` as they stand after the last call."""
        return self.hidden[kept_rows(self.calls)]

    def case(self, layout: Layout) -> Case:
        """The probe in the artifact's own inputs, as its layout has them."""
        kept = kept_rows(self.calls)
        first = self.calls[0][0] - self.before
        bounds = pairwise(accumulate((length for _, length in self.calls), initial=0))
        parts = [self.hidden[slice(*bound)] for bound in bounds]
        longest = max(length for _, length in self.calls)
        calls = (
            layout.inputs(part, start, *filter(None, [first]))
            for part, (start, _) in zip(parts, self.calls, strict=True)
        )
        recurrent, starts = trait(layout, "recurrent") or (), [start for start, _ in self.calls]
        # By each call that goes back, the earlier one that began at the same position.
        back = {i: starts.index(b) for i, (a, b) in enumerate(pairwise(starts), 1) if b <= a}
        return Case(
            self.kind, self.name, tuple(calls),
            rows=lambda outputs: {"y": layout.output(outputs)[:longest]},
            expected={"y": self.expected},
            length=len(kept),
            input_max=float(np.abs(self.hidden).max(initial=0.0)) * trait(layout, "entry_scale"),
            causal=trait(layout, "causal"),
            residual={} if self.residual is None else {"y": self.residual},
            kept=None if len(kept) == len(self.hidden) else tuple(kept),
            restored=back if recurrent else {}, recurrent=recurrent,
            start=self.start, routed=self.routed, left_out=self.left_out, states=self.states,
            undecided=self.undecided, same_module=self.same_module,
        )  # fmt: skip


def goes_back_to_calls(calls: Calls) -> bool:
    """Whether each call that goes back begins where an earlier one began."""
    starts = [start for start, _ in calls]
    return all(b > a or b in starts[:i] for i, (a, b) in enumerate(pairwise(starts), 1))


def kept_rows(calls: Calls) -> list[int]:
    """Rows of the sequence as it stands after the last call, in order of their positions.

    `ValueError` where a call leaves a gap after those before it, or begins before the first.
    """
    kept: list[int] = []
    row, first = 0, calls[0][0]
    for start, length in calls:
        if not 0 <= start - first <= len(kept):
            raise ValueError(f"a call begins at position {start}, outside the sequence so far")
        kept[start - first :] = range(row, row + length)
        row += length
    return kept


def in_steps(length: int, size: int, start: int = 0) -> Calls:
    """Positions from `start` on in calls of T = `size`, the last one perhaps shorter."""
    return tuple((start + i, min(size, length - i)) for i in range(0, length, size))


def answered_probes(
    model: LanguageModel, shard: Shard, captured: CapturedStates
) -> list[HiddenProbe]:
    """A shard's probes with the float32 module's outputs and, where it has them, routes."""
    layout, fill = model.layout(shard.id), optional(model, "filling", shard.id)
    probes = list(draw_probes(shard, layout, captured))
    before = [probe.hidden[:0] for probe in probes]
    if fill is not None:
        for probe, rows in _across_window(shard, layout):
            states = {name: np.asarray(x, np.float16) for name, x in fill(rows).items()}
            probes.append(replace(probe, states=states))
            before.append(rows)
    hidden = [probe.sequence for probe in probes]
    whole = [np.concatenate(parts) for parts in zip(before, hidden, strict=True)]
    expected = [
        outputs[len(rows) :]
        for outputs, rows in zip(model.reference(shard.id)(whole), before, strict=True)
    ]

    def told(method: str, absent: Any) -> Sequence[Any]:
        tell = optional(model, method, shard.id)
        return tell(hidden) if tell else [absent] * len(probes)

    same, width = not optional(model, "independent", shard.id), layout.width
    parts = (expected, told("residual", None), told("routed", ()), told("undecided", ()))
    return [
        replace(
            probe, expected=rows, residual=path, routed=route, undecided=close,
            # A head's output does not carry on what enters.
            left_out=probe.left_out if path is not None or rows.shape[1] == width else (),
            same_module=same,
        )
        for probe, rows, path, route, close in zip(probes, *parts, strict=True)
    ]  # fmt: skip


def draw_probes(shard: Shard, layout: Layout, captured: CapturedStates) -> Iterator[HiddenProbe]:
    """A shard's probes with nothing expected; `captured` is called where a kind needs it."""
    probes, stateful, states = shard.probes, layout.sees == "state", cache(captured)

    @cache
    def statistics() -> Captured:
        return Captured.from_states([hidden for _, hidden in states()])

    for length, chunk, is_end in _lengths(shard, stateful):
        for kind, name, hidden in seeded(
            [kind for kind in probes.kinds if is_end or kind != "extreme"],
            count=probes.count if is_end else 1, seed=probes.seed,
            length=length, width=layout.width, edge=FP16_EDGE / trait(layout, "entry_scale"),
            captured=statistics,
        ):  # fmt: skip
            by = f" in steps of {chunk}" if stateful else ""
            yield HiddenProbe(kind, name + by, 0, in_steps(length, chunk), hidden)
    yield from _patterns(shard, layout)
    for prompt, hidden in states() if "captured" in probes.kinds else ():
        # Position 0 is an attention sink, so the last is the single-token probe. States need all.
        for start in (0,) if stateful else dict.fromkeys((len(hidden) - 1, 0)):
            part = hidden[start:]
            calls = in_steps(len(part), shard.max_tokens)
            yield HiddenProbe("captured", f"captured {prompt} T={len(part)}", start, calls, part)


def _lengths(shard: Shard, stateful: bool) -> list[tuple[int, int, bool]]:
    """`(positions, largest T of a call, whether it is the shortest or longest)` of seeded probes.

    The lengths between are those of `ragged` where a shard has states.
    """
    if not stateful:
        ends = {1, shard.max_tokens}
        every = lengths(shard.max_tokens, shard.probes.seed + _number(shard))
        return [(length, length, length in ends) for length in every]
    chunks = sorted({1, min(shard.max_tokens, shard.context)})
    return [(min(max(_STEPS, 2 * chunk), shard.context), chunk, True) for chunk in chunks]


def _number(shard: Shard) -> int:
    """7 of `L07`: with one seed, shards one after another draw other lengths and starts."""
    return int("".join(filter(str.isdecimal, shard.id)) or 0)


def _patterns(shard: Shard, layout: Layout) -> Iterator[HiddenProbe]:
    """Probes `massive`, `ragged`, `rewrite` and `long`, each one of its size and its calls."""
    width, kinds, seed = layout.width, shard.probes.kinds, shard.probes.seed
    stateful = layout.sees == "state"
    largest = min(shard.max_tokens, shard.context) if stateful else shard.max_tokens
    for size in MASSIVE if "massive" in kinds else ():
        length = min(4, largest)
        bits = generator(seed, "massive", length, width, size)
        hidden, channels = massive(bits, (length, width), size)
        name, calls = f"massive T={length} at {size:,}", in_steps(length, length)
        yield HiddenProbe("massive", name, 0, calls, hidden, left_out=channels)
    sequences: list[tuple[str, str, Calls]] = []
    if stateful and "ragged" in kinds:
        anywhere = trait(layout, "shifts")
        drawn = drawn_calls(seed + _number(shard), largest, shard.context, anywhere=anywhere)
        ragged = [("", c) for c in ragged_calls(largest, shard.context, anywhere=anywhere)]
        for what, calls in (*ragged, *(("from a drawn start, ", c) for c in drawn)):
            where = f"{what}positions {calls[0][0]} to {sum(calls[-1]) - 1}"
            sequences.append(("ragged", where, calls))
    if stateful and "rewrite" in kinds and trait(layout, "recurrent") is not None:
        twice = rewrite_calls(largest, shard.context)
        sequences += [("rewrite", f"from {start}", calls) for start, calls in twice.items()]
    for kind, where, calls in sequences:
        shape = (sum(length for _, length in calls), width)
        hidden = gaussian(generator(seed, kind, where, *shape), shape)
        yield HiddenProbe(kind, f"{kind} {where}", 0, calls, hidden)
    if shard.probes.lengths and layout.sees == "call":
        raise ManifestError(
            f"{shard.qualified}: probes.lengths fills a key-value state, and this shard keeps "
            "none; set stateful = true, or leave lengths out."
        )
    for length in shard.probes.lengths if stateful else ():
        hidden = segmented(generator(seed, "long", length, width), (length, width))
        calls = in_steps(length, shard.max_tokens)
        yield HiddenProbe("long", f"long, {length:,} keys", 0, calls, hidden)


def _across_window(shard: Shard, layout: Layout) -> Iterator[tuple[HiddenProbe, FloatArray]]:
    """A `ragged` sequence, and the rows before it, over a window's end that others do not reach."""
    window, context = trait(layout, "window"), shard.context
    if window is None or layout.sees != "state" or "ragged" not in shard.probes.kinds:
        return
    largest = min(shard.max_tokens, context)
    sizes = [size for size in _RAGGED if size <= largest][:5]
    start, end = window - sum(sizes) // 2, window + -(-sum(sizes) // 2)
    reached = sum(ragged_calls(largest, context, anywhere=trait(layout, "shifts"))[0][-1])
    if reached > window or end > context:
        return
    shape = (end, layout.width)
    hidden = gaussian(generator(shard.probes.seed, "window", *shape), shape)
    name = f"ragged across the window, positions {start} to {end - 1}"
    calls = _in_turn(sizes, start, end)
    yield HiddenProbe("ragged", name, 0, calls, hidden[start:], before=start), hidden[:start]


def ragged_calls(largest: int, context: int, *, anywhere: bool) -> list[Calls]:
    """One sequence to the end of the context in calls of very different T, each up to `largest`.

    Where that takes more than three rounds of such calls, one round each at the start, the middle
    and the end of the context. Last a single position in the last slot: among many keys its own may
    count for nothing. If a sequence cannot begin `anywhere`, there is only what begins at 0.
    """
    sizes = [size for size in (*_RAGGED, *above_powers(64, largest)) if size <= largest]
    sizes += [largest] if largest not in sizes else []
    length = sum(sizes)
    whole = context <= _CYCLES * length
    spans = [_in_turn(sizes, 0, context if whole else length)]
    if anywhere and not whole:
        starts = ((context - length) // 2, context - length)
        spans += [_in_turn(sizes, start, start + length) for start in starts]
    return [*spans, ((context - 1, 1),)] if anywhere and context > 1 else spans


def drawn_calls(seed: int, largest: int, context: int, *, anywhere: bool) -> list[Calls]:
    """Two sequences with calls of one position from a drawn start on.

    Up to four positions come before, or all of them if a sequence cannot begin `anywhere`: then
    starts lie within the first 8 calls. 40 seeds meet every position of a context of up to 640.
    """
    reach = context if anywhere else min(context, _DRAWN * largest)
    singles = min(_DRAWN, -(-reach // 80))
    spans: list[Calls] = []
    for start in pick(seed, "starts", range(0, reach, singles)):
        before = min(start, largest, _BEFORE) if anywhere else start
        ones = in_steps(min(singles, context - start), 1, start)
        spans.append((*in_steps(before, largest, start - before), *ones))
    return spans


def _in_turn(sizes: Sequence[int], start: int, end: int) -> Calls:
    starts = takewhile(lambda at: at < end, accumulate(cycle(sizes), initial=start))
    return tuple((a, b - a) for a, b in pairwise((*starts, end)))


def rewrite_calls(largest: int, context: int) -> dict[int, Calls]:
    """By the position that they go back to, calls that write some positions twice.

    As a verifier does whose draft was rejected, and a new sequence on the state of another. They
    go back to where a call began: recurrent states are known there.
    """
    length = min(_REWRITTEN, context)
    before = in_steps(length, max(1, min(largest, length // 2)))
    return {
        start: before + in_steps(min(_AGAIN, context - start), largest, start)
        for start in (before[len(before) // 2][0], 0)
    }


def to_tensors(probes: Sequence[HiddenProbe]) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Probes as tensors by name, and the rest as JSON; `{i}.residual` where it is not the input."""
    tensors: dict[str, Any] = {}
    listed = []
    for i, p in enumerate(probes):
        tensors |= {f"{i}.input": p.hidden, f"{i}.expected": p.expected}
        tensors |= {f"{i}.state.{name}": x for name, x in p.states.items()}
        note = {"kind": p.kind, "name": p.name, "start": p.start, "calls": p.calls}
        keys = ("routed", "left_out", "undecided", "before", "same_module")
        optional = {key: getattr(p, key) for key in keys}
        if p.residual is not None and np.array_equal(p.residual, p.sequence):
            optional["residual"] = "input"
        elif p.residual is not None:
            tensors[f"{i}.residual"] = p.residual
        listed.append(note | {key: value for key, value in optional.items() if value})
    return tensors, listed


def probe_of(note: Mapping[str, Any], tensors: Arrays) -> HiddenProbe:
    """One probe by what `to_tensors` lists of it, and its tensors."""
    probe = HiddenProbe(
        note["kind"], note["name"], note["start"], tuple(map(tuple, note["calls"])),
        tensors["input"], tensors["expected"], tensors.get("residual"),
        tuple(map(tuple, note.get("routed", ()))), tuple(note.get("left_out", ())),
        tuple(note.get("undecided", ())), with_prefix(tensors, "state."), note.get("before", 0),
        note.get("same_module", False),
    )  # fmt: skip
    is_input = note.get("residual") == "input"
    return replace(probe, residual=probe.sequence) if is_input else probe


RECORDING_VERSION = 15
_FILE = "recording.safetensors"


@dataclass(frozen=True)
class TokenPrompt:
    """A golden prompt as token ids."""

    name: str
    ids: tuple[int, ...]


def record_hidden(
    cache: Cache,
    identity: dict[str, Any],
    prompts: Callable[[], Sequence[TokenPrompt]],
    spec: Any,
    wiring: Sequence[Wire],
    model: Callable[[], LanguageModel],
    name: str = "",
) -> Path:
    """The entry with golden prompts' hidden states `[T, C]` that enter and leave every shard.

    Tensors are `<prompt>/<shard>/in` and, but for heads, `.../out`; `name` is the model's.
    """
    key = {**identity, "recording": RECORDING_VERSION, "hidden": spec}
    key["wiring"] = [asdict(wire) for wire in wiring]

    def make(folder: Path) -> None:
        opened = model()
        embed = getattr(opened, "reference_embed", opened.embed)
        streams = {p.name: {"x": embed(p.ids)} for p in prompts()}
        tensors: dict[str, FloatArray] = {}
        for wire in wiring:
            for prompt, state in streams.items():
                tensors[f"{prompt}/{wire.shard}/in"] = shard_input(state, wire)
            if wire.is_head:
                continue
            inputs = [tensors[f"{prompt}/{wire.shard}/in"] for prompt in streams]
            for prompt, output in zip(streams, opened.reference(wire.shard)(inputs), strict=True):
                check_finite(output, wire.shard, f"golden prompt {prompt!r}")
                tensors[f"{prompt}/{wire.shard}/out"] = output
                apply_output(streams[prompt], wire, output)
        save(folder, tensors, {})

    return cache.get_or_make("recordings", key_digest(key), make, name)


def record_probes(
    cache: Cache,
    identity: dict[str, Any],
    shard: Shard,
    model: Callable[[], LanguageModel],
    captured: CapturedStates,
    captured_spec: Any,
) -> Path:
    """The entry with a family shard's probes, answered, and its ports.

    `captured_spec` is what the captured states depend on besides the identity. `model` and
    `captured` are called only when there is no recording yet.
    """
    key = identity | {
        "recording": [RECORDING_VERSION, GENERATOR], "shard": shard.id, "max": shard.max_tokens,
        "context": shard.context, "probes": shard.probes.model_dump(mode="json"),
        "captured": captured_spec if shard.probes.of_prompts else None,
    }  # fmt: skip

    def make(folder: Path) -> None:
        opened = model()
        probes = answered_probes(opened, shard, captured)
        for probe in probes:
            check_finite(probe.expected, shard.qualified, f"the probe {probe.name!r}")
        tensors, listed = to_tensors(probes)
        about = {"shard": shard.qualified, "description": opened.description, "probes": listed}
        save(folder, tensors, about | {"ports": asdict(ports_of(opened, shard.id))})

    return cache.get_or_make("recordings", key_digest(key), make, shard.qualified)


def load_probes(folder: Path, shard: Shard) -> tuple[list[HiddenProbe], Layout]:
    """A family shard's recorded probes, and its layout."""
    assert shard.family is not None
    tensors, metadata = load(folder)
    layout = get_family(shard.family).layout(metadata["description"], shard.id)
    listed = enumerate(metadata["probes"])
    return [probe_of(note, with_prefix(tensors, f"{i}.")) for i, note in listed], layout


def load_ports(folder: Path) -> Ports:
    """The ports that were recorded with a shard's probes."""
    sides = read_metadata(folder)["ports"].items()
    return Ports(**{s: tuple(Port(p["name"], tuple(p["shape"])) for p in ps) for s, ps in sides})


def check_finite(output: FloatArray, shard: str, probe: str) -> None:
    """Raise `SourceError` where a reference is NaN or infinite: nothing can be held against it."""
    if not np.isfinite(output).all():
        raise SourceError(
            f"The float32 reference of {shard} is NaN or infinite for {probe}, so nothing can be "
            "compared with it; repair the source of its weights."
        )


def load_hidden(
    folder: Path, prompt: str, shard: str, end: Literal["in", "out"] = "in"
) -> FloatArray:
    """A prompt's hidden states `[T, C]` entering a shard, or leaving it if it is no head."""
    name = f"{prompt}/{shard}/{end}"
    return load(folder, name)[0][name]


def save(folder: Path, tensors: dict[str, FloatArray], metadata: dict[str, Any]) -> None:
    """Store tensors and JSON metadata as one safetensors file; `OSError` where the disk is full."""
    contiguous = {name: np.ascontiguousarray(tensor) for name, tensor in tensors.items()}
    try:
        save_file(contiguous, folder / _FILE, {"json": json.dumps(metadata)})
    except SafetensorError as error:  # Its text has what the system said.
        raise OSError(str(error)) from error


def load(folder: Path, *names: str) -> tuple[dict[str, FloatArray], dict[str, Any]]:
    """All tensors of a recording or those named, and its metadata; `CacheError` if damaged."""
    with _opened(folder) as (file, about):
        return {name: file.get_tensor(name) for name in names or file.keys()}, about


def read_metadata(folder: Path) -> dict[str, Any]:
    """A recording's metadata alone; `CacheError` where the file is damaged."""
    with _opened(folder) as (_, about):
        return about


@contextmanager
def _opened(folder: Path) -> Iterator[tuple[Any, dict[str, Any]]]:
    try:
        with safe_open(folder / _FILE, framework="numpy") as file:
            yield file, json.loads((file.metadata() or {}).get("json", "{}"))
    except (OSError, SafetensorError, ValueError) as error:
        raise CacheError(
            f"The recorded reference {folder / _FILE} is damaged ({error}); "
            f"delete the folder {folder} and run again."
        ) from error
