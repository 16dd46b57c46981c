"""`pytest-ane bound`: bound each kind of shards by bandwidth and compute; show what helps.

The roofline bound: no call is faster than its bytes are streamed, or its products computed.
Williams, Waterman, Patterson, Roofline, CACM 52(4), 2009.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from textwrap import wrap
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from pytest_ane.cli.options import add_shared, count, positive
from pytest_ane.cli.output import Output, tell
from pytest_ane.gates.throughput.stored import read_stored
from pytest_ane.make import Cache
from pytest_ane.manifest import Shard
from pytest_ane.mlprogram.errors import ManifestError
from pytest_ane.mlprogram.executor.shapes import largest_tokens
from pytest_ane.mlprogram.groups import grouped
from pytest_ane.mlprogram.model import SUFFIXES
from pytest_ane.mlprogram.strict_json import first_error
from pytest_ane.project.choose import choose_model
from pytest_ane.project.models import OpenModel
from pytest_ane.project.progress import Progress
from pytest_ane.project.project import read_project
from pytest_ane.report.table import columns
from pytest_ane.tools._costs import Costs, costs_of
from pytest_ane.tools._devices import THIS_MACHINE, Device, Rate, choose_device

EXAMPLE = "pytest-ane bound shards.toml --device 'M4 Max' --measured 9.25"
_MOST = 64
"""Largest T of a package that a manifest does not describe."""
_GIGA, _TERA = 1e9, 1e12
_ALL = "all"
"""The kind of the sum."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The model, the device, and measured speeds."""
    add = parser.add_argument
    add("path", nargs="?", type=Path, help="an .mlpackage or .mlmodelc, or a manifest")
    add_shared(parser, "manifest")
    add("--model", metavar="NAME", help="of a manifest of several")
    words = (
        "a chip such as 'M4 Max', 'this machine', or a profile FILE.toml (default: this Mac's "
        "chip, elsewhere M4 Max)"
    )
    add("--device", metavar="NAME", help=words)
    add("--bandwidth", type=positive, metavar="GB/S", help="in place of its own")
    add("--peak", type=positive, metavar="TFLOP/S", help="in place of its own")
    add("--lanes", type=count, metavar="N", help="pad the last axis to a multiple; 1 for none")
    add("--tokens", type=count, metavar="T", help="besides T = 1 (default: the largest T)")
    words = (
        "measured speed, for its share of the bound; or a .json: a benchmark run, or another "
        "runtime's speed"
    )
    add("--measured", action="append", default=[], metavar="[T=]TOK/S", help=words)
    add_shared(parser, "cache")


def run(options: argparse.Namespace) -> Output:
    """The resource that limits each kind of shards, and what would help."""
    if options.path and options.manifest:
        raise ManifestError(f"Give {options.path} or --manifest {options.manifest}, not both.")
    path: Path = options.path or options.manifest or Path("shards.toml")
    if path.suffix not in SUFFIXES and not path.is_file():
        what = "is a folder" if path.is_dir() else "does not exist"
        raise ManifestError(f"{path} {what}; name a manifest, an .mlpackage or an .mlmodelc.")
    figures = {name: getattr(options, name) for name in ("bandwidth", "peak", "lanes")}
    device = choose_device(options.device, Cache(options.cache).root, figures)
    if path.suffix in SUFFIXES:
        name, groups = path.name, [Group("package", path.name, 1, costs_of(path))]
        most = largest_tokens(path, _MOST)
    else:
        name, groups, most = model_groups(path, options.model, options.cache)
    speeds = [read_measured(text, name, device) for text in options.measured]
    tokens = dict.fromkeys((1, options.tokens or most, *(s.tokens for s in speeds)))
    calls = [bound_call(groups, device, t) for t in tokens]
    if calls[0].tokens is None:
        calls = calls[:1]
    yield from lines(name, device, groups, calls, speeds)
    return {
        "command": "bound",
        **({} if path.suffix in SUFFIXES else {"model": name}),
        "name": name,
        "device": device,
        "groups": [{"kind": g.kind, "subject": g.subject, "count": g.count} for g in groups],
        "calls": [{**vars(call), "rate": call.rate} for call in calls],
        "measured": speeds,
    }


@dataclass(frozen=True)
class Group:
    """Shards of one kind (`mixture`, `attention`, `head`...) that cost the same, at a T.

    `subject` is the one whose program was counted, for `count` of them, itself included.
    """

    kind: str
    subject: str
    count: int
    at: Callable[[int], Costs]


def model_groups(path: Path, name: str | None, cache: Path | None) -> tuple[str, list[Group], int]:
    """A manifest's model: its name, its groups of shards, and the largest T that all of them take.

    Of what is not built, one of each group is.
    """
    project = read_project(path, cache)
    model = choose_model(project.manifest, name)
    project.progress = Progress(len(model.shards), tell)
    # One call runs, of the functions of a package, the first.
    running: dict[object, Shard] = {}
    for shard in model.shards:
        running.setdefault(shard.artifact if shard.function else shard.id, shard)
    shards, kinds, layouts = list(running.values()), dict[str, str](), dict[str, object]()
    with project.use():
        opened = project.model(model.name) if model.family else None
        if isinstance(opened, OpenModel):
            kinds = {wire.shard: wire.kind for wire in opened.wiring}
            layouts = {shard.id: opened.layout(shard) for shard in shards}
            order = [*kinds]
            shards.sort(key=lambda s: order.index(s.id) if s.id in kinds else len(order))
        groups = []
        for alike in same_costs(shards, kinds, layouts):
            kind = kinds.get(alike[0].id, alike[0].id)
            tell(f"{kind}: {len(alike)} shards")
            groups += counted(kind, alike, project.package, lambda s: project.artifact(s).path)
        tell("")
    own = [
        largest_tokens(shard.artifact, model.max_tokens, shard.function)
        for shard in shards
        if shard.artifact is not None
    ]
    most = min((t for t in own if t > 1), default=1 if own else model.max_tokens)
    return model.name, groups, most


def same_costs(
    shards: Sequence[Shard], kinds: dict[str, str], layouts: dict[str, object]
) -> list[list[Shard]]:
    """Shards of one kind, compression and layout together; users' own packages each alone."""

    def key(shard: Shard) -> object:
        sizes = (shard.max_tokens, shard.context, shard.target)
        fed = (kinds.get(shard.id, shard.id), repr(layouts.get(shard.id, shard.id)))
        return shard.id if shard.artifact else (shard.requested.model_dump_json(), sizes, fed)

    return list(grouped((key(shard), shard) for shard in shards).values())


def counted(
    kind: str,
    shards: Sequence[Shard],
    built: Callable[[Shard], Path | None],
    build: Callable[[Shard], Path],
) -> list[Group]:
    """Built shards are counted individually; unbuilt ones by one representative.

    That is the built shard nearest to the middle; where none is built, that one is built now.
    """
    paths = [built(shard) for shard in shards]
    middle = len(shards) // 2
    if not any(paths):
        paths[middle] = build(shards[middle])
    places = [i for i, path in enumerate(paths) if path]
    chosen = min(places, key=lambda i: abs(i - middle))
    others = len(shards) - len(places)
    return [
        Group(kind, shard.id, 1 + others * (i == chosen), costs_of(path, shard.function))
        for i, (shard, path) in enumerate(zip(shards, paths, strict=True))
        if path
    ]


@dataclass(frozen=True)
class KindBound:
    """The least time of shards of one kind in a call; they run one after the other.

    Attributes:
        weights, states, held: bytes, and `macs`, of all of them.
        intensity: floating-point operations per byte streamed.
        streaming, computing: seconds to move all bytes, and to multiply and accumulate.
        seconds: the sum of the longer of the two of each: at best they overlap.
        bound_by: the resource that takes longer: `bandwidth`, `compute`, or `both` among them.
    """

    kind: str
    count: int
    weights: int
    states: int
    held: int
    macs: int
    intensity: float
    streaming: float
    computing: float
    seconds: float
    bound_by: str


def roofline(
    kind: str,
    costs: Sequence[tuple[int, Costs]],
    device: Device,
    *,
    weights: float = 1.0,
    macs: float = 1.0,
) -> KindBound:
    """The bound of shards, each so many times; `weights` and `macs` scale their bytes and MACs."""
    times = []
    for shards, cost in costs:
        stored = cost.weights if device.held is None else device.held * cost.elements
        streamed = weights * stored + cost.states + cost.inputs + cost.outputs
        move = streamed / (_GIGA * device.bandwidth)
        compute = 2 * macs * cost.padded(device.lanes) / (_TERA * device.peak)
        times.append((shards, move, compute))
    streaming = sum(n * move for n, move, _ in times)
    binding = {"bandwidth" if move >= compute else "compute" for _, move, compute in times}
    total = sum(n * cost.macs for n, cost in costs)
    return KindBound(
        kind=kind,
        count=sum(n for n, _ in costs),
        weights=sum(n * cost.weights for n, cost in costs),
        states=sum(n * cost.states for n, cost in costs),
        held=sum(n * cost.held for n, cost in costs),
        macs=total,
        intensity=2 * total / (streaming * _GIGA * device.bandwidth) if streaming else math.inf,
        streaming=streaming,
        computing=sum(n * compute for n, _, compute in times),
        seconds=sum(n * max(move, compute) for n, move, compute in times),
        bound_by=binding.pop() if len(binding) == 1 else "both",
    )


@dataclass(frozen=True)
class CallBound:
    """One call of all shards at a T.

    Attributes:
        tokens: T; None where shapes are fixed.
        kinds: in running order.
        half_weights, half_macs: seconds with weights of half the bytes, and with half the MACs.
        unpadded: seconds if the device pads no axis to its lane width.
    """

    tokens: int | None
    kinds: tuple[KindBound, ...]
    total: KindBound
    half_weights: float
    half_macs: float
    unpadded: float

    @property
    def unit(self) -> str:
        """`tok`, or `call` where shapes are fixed."""
        return "call" if self.tokens is None else "tok"

    @property
    def rate(self) -> float:
        """The most tokens a second, or calls where shapes are fixed."""
        return self.rate_of(self.total.seconds)

    def rate_of(self, seconds: float) -> float:
        """As `rate`, of calls that take so many seconds."""
        return (self.tokens or 1) / seconds


def bound_call(groups: Sequence[Group], device: Device, tokens: int) -> CallBound:
    """The bound of one call of all shards; `ExecutionError` if one takes no such T."""
    every = [(group.count, group.at(tokens)) for group in groups]
    kinds = grouped((group.kind, each) for group, each in zip(groups, every, strict=True))
    return CallBound(
        tokens=None if all(cost.tokens is None for _, cost in every) else tokens,
        kinds=tuple(roofline(kind, each, device) for kind, each in kinds.items()),
        total=roofline(_ALL, every, device),
        half_weights=roofline(_ALL, every, device, weights=0.5).seconds,
        half_macs=roofline(_ALL, every, device, macs=0.5).seconds,
        unpadded=roofline(_ALL, every, device.model_copy(update={"lanes": 1})).seconds,
    )


_Text = Annotated[str, Field(min_length=1, max_length=300)]


class Measured(BaseModel):
    """A measured speed of decoding; another runtime's is handed in as JSON with these keys.

    Attributes:
        runtime: name and version: `mlx-lm 0.21, 4 bit`.
        device: `M4 Max GPU`; a share of the bound is shown only where it is the bound's device.
        tokens: T, positions of a call.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    runtime: _Text
    device: _Text
    model: _Text
    tok_s: Rate
    tokens: Annotated[int, Field(ge=1, le=1 << 16)] = 1
    joules_per_token: Rate | None = None


def read_measured(text: str, model: str, device: Device) -> Measured:
    """A model's speed as `--measured` names it.

    That is tokens a second, perhaps after `T=`; or a `.json` file: a run of pytest-benchmark, of
    which the decoding is taken, or an object as `Measured` has it; else an `AneError`.
    """
    if text.endswith(".json"):
        return _stored(Path(text), model, device)
    tokens, _, tok_s = text.rpartition("=")
    about = {"runtime": "measured", "device": _plain_name(device), "model": model}
    try:
        return Measured.model_validate({**about, "tok_s": tok_s, "tokens": tokens or 1})
    except ValidationError:
        raise ManifestError(
            f"--measured {text}: give tokens a second, such as 9.25, 4=8.28 for calls of T = 4, "
            "or a .json file: a run of pytest-benchmark, or another runtime's speed."
        ) from None


def _plain_name(device: Device) -> str:
    return device.name.partition(" with ")[0]


def _stored(file: Path, model: str, device: Device) -> Measured:
    try:
        text = file.read_bytes()
        if b'"benchmarks"' in text:
            return _decoding(file, model, device)
        measured = Measured.model_validate_json(text)
    except OSError as error:
        raise ManifestError(f"--measured {file}: cannot be read ({error.strerror}).") from None
    except ValidationError as error:
        raise ManifestError(
            f"--measured {file}: {first_error(error)}; give an object with runtime, device, model "
            "and tok_s, or a stored run of pytest-benchmark."
        ) from None
    if measured.model != model:
        raise ManifestError(f"--measured {file}: is of {measured.model}, and the bound of {model}.")
    return measured


def _decoding(file: Path, model: str, device: Device) -> Measured:
    speeds = read_stored(file).speeds.values()
    decoding = [s for s in speeds if s.what == "decode" and s.subject == model and s.tok_s]
    if not decoding:
        raise ManifestError(f"--measured {file}: holds no decoding of {model}.")
    speed, name = decoding[-1], _plain_name(device)
    chip = speed.identity.get("chip", "").removeprefix("Apple ")
    ran_on = THIS_MACHINE if speed.identity.get("backend") == "cpu" else chip
    if ran_on not in ("", name):
        raise ManifestError(
            f"--measured {file}: was measured on {ran_on}, and the bound is of {device.name}; "
            f"give --device '{ran_on}'."
        )
    return Measured(runtime="measured", device=name, model=model, tok_s=speed.tok_s or 0.0)


_COLUMNS = (
    "kind", "shards", "weight MB", "state MB", "GMAC", "FLOP/B",
    "bytes ms", "MACs ms", "ms", "by",
)  # fmt: skip
_BINDS = {"bandwidth": "bytes", "compute": "MACs"}


def lines(
    name: str,
    device: Device,
    groups: Sequence[Group],
    calls: Sequence[CallBound],
    measured: Sequence[Measured],
) -> Iterator[str]:
    """The whole report, with measured speeds at their T; `name` is of the model or package."""
    lanes = f", axes of {device.lanes}" if device.lanes > 1 else ""
    weights = f", weights of {device.held} bytes" if device.held else ""
    yield (
        f"{name} on {device.name}: {device.bandwidth:g} GB/s, {device.peak:g} TFLOP/s, "
        f"ridge {1000 * device.peak / device.bandwidth:.3g} FLOP/B{lanes}{weights}"
    )
    if represent := [f"{g.subject} for {g.count} of {g.kind}" for g in groups if g.count > 1]:
        yield from wrap(f"counted: {', '.join(represent)}", 80, subsequent_indent="  ")
    if held := calls[0].total.held:
        yield f"KV cache and other states: {_mega(held)} MB"
    for call in calls:
        yield from ("", *_call(call, device))
        yield from (_measured(m, call, device) for m in measured if m.tokens == (call.tokens or 1))
    yield ""
    yield "A bound, no forecast: launches, host and what does not overlap come on top."


def _call(call: CallBound, device: Device) -> Iterator[str]:
    unit, total = call.unit, call.total.seconds
    yield "fixed shapes" if call.tokens is None else f"T = {call.tokens}"
    rows = [_COLUMNS, *map(_row, call.kinds)]
    if len(call.kinds) > 1:
        *figures, _ = _row(call.total)
        rows.append((*figures[:5], "", *figures[6:], ""))
    yield from columns(rows, last=True, gap=" ")
    yield f"at most {_rate(call.rate)} {unit}/s ({_ms(total)} ms a call)"
    helps = {"weights of half the bytes": call.half_weights, "half the MACs": call.half_macs}
    for what, seconds in helps.items():
        # Sums in another order differ in their last bits: no -0 %.
        more = round(total / seconds - 1, 6) + 0.0
        yield f"  {what}: {_rate(call.rate_of(seconds))} {unit}/s ({more:+.0%})"
    if device.lanes > 1 and abs(call.unpadded / total - 1) > 1e-3:
        yield f"  without padding to the lane width: {_rate(call.rate_of(call.unpadded))} {unit}/s"


def _measured(measured: Measured, call: CallBound, device: Device) -> str:
    """Our speed with its share of the bound, or another runtime's and its energy."""
    here = measured.device == _plain_name(device)
    share = f", {measured.tok_s / call.rate:.0%} of the bound" if here else ""
    joules = measured.joules_per_token
    energy = "" if joules is None else f", {joules:.3g} J a token"
    where = "" if here else f" on {measured.device}"
    return f"  {measured.runtime}{where}: {_rate(measured.tok_s)} {call.unit}/s{share}{energy}"


def _row(kind: KindBound) -> tuple[str, ...]:
    return (
        kind.kind, str(kind.count), _mega(kind.weights), _mega(kind.states),
        f"{kind.macs / 1e9:.3f}", f"{kind.intensity:.1f}",
        *map(_ms, (kind.streaming, kind.computing, kind.seconds)),
        _BINDS.get(kind.bound_by, kind.bound_by),
    )  # fmt: skip


def _mega(count: int) -> str:
    return f"{count / 1e6:.1f}"


def _ms(seconds: float) -> str:
    return f"{1000 * seconds:.3f}" if seconds < 0.001 else f"{1000 * seconds:.2f}"


def _rate(rate: float) -> str:
    return f"{rate:.0f}" if rate >= 100 else f"{rate:.3g}"
