"""The page of the battery: what the gates kill, what survives and why, and false reds."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from pytest_ane.gates.registry import GATES
from tests.battery import FAULTS
from tests.battery.effect import EFFECT
from tests.battery.run import GATED, Result

CAUSES: Mapping[str, str] = {
    "wrong function": r"wrong function",
    "fp16": r"fp16|overflow|NaN|infinite",
    "compression": r"^(?!.*wrong function).*(compress|palett|tables|bits? inst|were to be|k-means)",
    "interface": r"interface|declare|input|output|state|range of T|T from|T of",
    "reference": r"reference",
    "build": r"could not be|cut short",
}
"""How the first sentence of a verdict names each cause."""

_INTRODUCTION = """\
# Battery

`make battery` puts faults into shards and asks the gates. Each fault is in the artifact, or in what
the host gives it, and never in the reference; each rewriting marked benign computes the same. This
page is what the command printed.

A fault counts where it has an effect: where it changes what a shard adds by more than {effect} at
some position of some probe, in float32, or in fp16 where only fp16 shows it. Faults of a package's
files, of its interface and of its compression always count. A cause is right where the first
sentence of the red verdict names it.
"""


def page(results: Sequence[Result]) -> str:
    """The page as Markdown."""
    faults = [r for r in results if not FAULTS[r.fault].benign]
    benign = [r for r in results if FAULTS[r.fault].benign]
    unbuilt = [r for r in faults if "could not be converted" in r.sentence]
    faults = [r for r in faults if r not in unbuilt]
    counted = [r for r in faults if r.effect > EFFECT]
    parts = [_INTRODUCTION.format(effect=EFFECT)]
    names = len({r.fault for r in faults})
    parts.append(
        f"{names} faults and {len({r.fault for r in benign})} benign rewritings, "
        f"{len(faults)} and {len(benign)} with every shard they are put into.\n"
    )
    parts += ["## By class\n", _classes(counted)]
    parts += ["## By shard\n", _shards(counted)]
    parts += ["## By cause\n", _causes(counted)]
    parts += ["## Survivors\n", _survivors([r for r in counted if not r.red])]
    parts += ["## Without effect\n", _without([r for r in faults if r.effect <= EFFECT])]
    parts += ["## Not converted, and not counted\n", _without(unbuilt)]
    parts += ["## Benign\n", _benign(benign)]
    return "\n".join(parts)


def _classes(counted: Sequence[Result]) -> str:
    kinds = dict.fromkeys(FAULTS[r.fault].kind for r in counted)
    rows = [_row(kind, [r for r in counted if FAULTS[r.fault].kind == kind]) for kind in kinds]
    return _table(("class", *_HEAD), [*rows, _row("all", counted)])


def _shards(counted: Sequence[Result]) -> str:
    shards = sorted({r.shard for r in counted})
    rows = [_row(shard, [r for r in counted if r.shard == shard]) for shard in shards]
    return _table(("shard", *_HEAD), rows)


_HEAD = ("faults", "red", "share", *GATED, "right cause")


def _row(name: str, results: Sequence[Result]) -> tuple[object, ...]:
    red = [r for r in results if r.red]
    by = Counter(gate for r in red for gate in r.red)
    right = sum(map(_is_right, red))
    share = f"{len(red) / len(results):.1%}" if results else ""
    return name, len(results), len(red), share, *(by[gate] for gate in GATED), right


def _is_right(result: Result) -> bool:
    return bool(re.search(CAUSES[FAULTS[result.fault].cause], result.sentence))


def _causes(counted: Sequence[Result]) -> str:
    red = [r for r in counted if r.red]
    rows: list[tuple[object, ...]] = []
    for cause in CAUSES:
        of = [r for r in red if FAULTS[r.fault].cause == cause]
        if of:
            right = sum(map(_is_right, of))
            rows.append((cause, len(of), right, f"{right / len(of):.1%}"))
    return _table(("cause", "red", "named", "share"), rows)


def _survivors(results: Sequence[Result]) -> str:
    if not results:
        return "None.\n"
    rows = [
        (r.fault, FAULTS[r.fault].what, shards, f"{effect:.2g}")
        for r, shards, effect in _by_fault(results)
    ]
    return _table(("fault", "what", "survives in", "effect"), rows)


def _without(results: Sequence[Result]) -> str:
    if not results:
        return "None.\n"
    rows = [
        (r.fault, FAULTS[r.fault].what, shards, f"{effect:.2g}")
        for r, shards, effect in _by_fault(results)
    ]
    return _table(("fault", "what", "shards", "effect"), rows)


def _by_fault(results: Iterable[Result]) -> list[tuple[Result, str, float]]:
    """The first result of each fault, all shards, and the largest effect."""
    groups: dict[str, list[Result]] = {}
    for result in results:
        groups.setdefault(result.fault, []).append(result)
    return [
        (of[0], ", ".join(r.shard for r in of), max(r.effect for r in of)) for of in groups.values()
    ]


def _benign(results: Sequence[Result]) -> str:
    red = [r for r in results if r.red]
    if not red:
        return f"None of {len(results)} is red.\n"
    rows = [(r.fault, FAULTS[r.fault].what, r.shard, _short(r.sentence)) for r in red]
    return f"{len(red)} of {len(results)} are red.\n\n" + _table(
        ("rewriting", "what", "shard", "first sentence"), rows
    )


def _short(text: str) -> str:
    text = re.sub(r"/\S*/", "", text).replace("|", "/")
    return text if len(text) < 160 else f"{text[:157]}..."


def _table(head: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(map(str, line))} |" for line in lines) + "\n"


assert set(GATED) <= set(GATES)
