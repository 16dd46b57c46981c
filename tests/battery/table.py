"""The page of the battery: what the gates kill, what survives and why, and false reds."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence

from tests.battery import FAULTS
from tests.battery.effect import EFFECT
from tests.battery.run import GATED, Result
from tests.battery.tiny import family_of, is_tiny

CAUSES: Mapping[str, str] = {
    "wrong function": r"wrong function",
    "fp16": r"fp16|overflow|NaN|infinite",
    "compression": r"^(?!.*wrong function).*(compress|palett|tables|bits? inst|were to be|k-means)",
    "interface": r"interface|declare|input|output|state|range of T|T from|T of",
    "embedding": r"agreement|embedding|KL",
    "build": r"could not be|cut short",
}
"""How the first sentence of a verdict names each cause."""

_INTRODUCTION = """\
# Battery

`make battery` puts faults into shards and asks the gates. Each fault is in the artifact, or in what
the host gives it, and never in the reference; each rewriting marked benign computes the same. This
page is what the command printed.

Keys are faults of the family's own reading of a model's files: one setting of the configuration, or
one tensor, is read as another, by everything but the reference, which transformers reads. Each
family's are put into tiny checkpoints that transformers saves. A reading for which the file has no
tensor, or one of another shape, is refused when the model is opened, and not counted here. What the
host embeds is in no shard: there the artifacts are the references themselves, and the behaviour
gate is asked.

A fault counts where it has an effect: where it changes what a shard adds by more than {effect} at
some position of some probe, in float32, or in fp16 where only fp16 shows it. Faults of a package's
files, of its interface and of its compression always count. A cause is right where the first
sentence of the red verdict names it.
"""


_HEAD = ("faults", "red", "share", *GATED, "right cause")


def page(results: Sequence[Result]) -> str:
    """The page as Markdown."""
    faults = [r for r in results if not FAULTS[r.fault].benign]
    benign = [r for r in results if FAULTS[r.fault].benign]
    unbuilt = [r for r in faults if "could not be converted" in r.sentence]
    faults = [r for r in faults if r not in unbuilt]
    counted = [r for r in faults if r.effect > EFFECT]
    red = [r for r in counted if r.red]
    kinds = _groups(counted, lambda r: FAULTS[r.fault].kind.partition(":")[0])
    shards = _groups((r for r in counted if not is_tiny(r.shard)), lambda r: r.shard)
    keys = [r for r in counted if FAULTS[r.fault].place == "reading"]
    causes = _groups(red, lambda r: FAULTS[r.fault].cause)
    names, others = len({r.fault for r in faults}), len({r.fault for r in benign})
    parts = {
        "By class": _table(
            ("class", *_HEAD), [_row(*g) for g in (*kinds.items(), ("all", counted))]
        ),
        "By key": _keys(keys),
        "Keys by family": _families(keys),
        "By shard": _table(("shard", *_HEAD), [_row(*g) for g in sorted(shards.items())]),
        "By cause": _table(
            ("cause", "red", "named", "share"),
            [(c, len(causes[c]), *_named(causes[c])) for c in CAUSES if c in causes],
        ),
        "Survivors": _faults("survives in", [r for r in counted if not r.red]),
        "Without effect": _faults("shards", [r for r in faults if r.effect <= EFFECT]),
        "Not converted, and not counted": _faults("shards", unbuilt),
        "Benign": _benign(benign),
    }
    return "\n".join(
        [
            _INTRODUCTION.format(effect=EFFECT),
            f"{names} faults and {others} benign rewritings, {len(faults)} and {len(benign)} with "
            "every shard they are put into.\n",
            *(line for title, text in parts.items() for line in (f"## {title}\n", text)),
        ]
    )


def _groups(results: Iterable[Result], of: Callable[[Result], str]) -> dict[str, list[Result]]:
    groups: dict[str, list[Result]] = {}
    for result in results:
        groups.setdefault(of(result), []).append(result)
    return groups


def _named(results: Sequence[Result]) -> tuple[int, str]:
    """How many first sentences name the right cause."""
    right = sum(bool(re.search(CAUSES[FAULTS[r.fault].cause], r.sentence)) for r in results)
    return right, f"{right / len(results):.1%}" if results else ""


def _row(name: str, results: Sequence[Result]) -> tuple[object, ...]:
    red = [r for r in results if r.red]
    by = Counter(gate for r in red for gate in r.red)
    share = f"{len(red) / len(results):.1%}" if results else ""
    return name, len(results), len(red), share, *(by[gate] for gate in GATED), _named(red)[0]


def _keys(results: Sequence[Result]) -> str:
    keys = _groups(results, lambda r: FAULTS[r.fault].kind.removeprefix("key: "))
    rows = [
        (name, len({family_of(r.shard) for r in some}), *_counts(some))
        for name, some in (*sorted(keys.items()), ("all", results))
    ]
    return _table(("key", "families", *_HEAD[:3], "right cause"), rows)


def _families(results: Sequence[Result]) -> str:
    families = _groups(results, lambda r: family_of(r.shard))
    rows = [(name, *_counts(some)) for name, some in sorted(families.items())]
    return _table(("family", *_HEAD[:3], "right cause"), rows)


def _counts(results: Sequence[Result]) -> tuple[object, ...]:
    _, count, red, share, *_, right = _row("", results)
    return count, red, share, right


def _faults(where: str, results: Sequence[Result]) -> str:
    """Each fault with all its shards and its largest effect."""
    rows = [
        (
            name,
            FAULTS[name].what,
            ", ".join(r.shard for r in of),
            f"{max(r.effect for r in of):.2g}",
        )
        for name, of in _groups(results, lambda r: r.fault).items()
    ]
    return _table(("fault", "what", where, "effect"), rows) if rows else "None.\n"


def _benign(results: Sequence[Result]) -> str:
    rows = [(r.fault, FAULTS[r.fault].what, r.shard, _short(r.sentence)) for r in results if r.red]
    if not rows:
        return f"None of {len(results)} is red.\n"
    table = _table(("rewriting", "what", "shard", "first sentence"), rows)
    return f"{len(rows)} of {len(results)} are red.\n\n{table}"


def _short(text: str) -> str:
    text = re.sub(r"/\S*/", "", text).replace("|", "/")
    return text if len(text) < 160 else f"{text[:157]}..."


def _table(head: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(map(str, line))} |" for line in lines) + "\n"
