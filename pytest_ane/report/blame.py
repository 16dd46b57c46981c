"""What a shard's error comes from, in lines: weights, what would mend them, operations."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from pytest_ane.analysis.blame import WORST, Blame, Culprit
from pytest_ane.analysis.operations import Suspect
from pytest_ane.analysis.remedies import Mend
from pytest_ane.core.text import printable
from pytest_ane.manifest import Linear, Palettize, Settings

_RUN_BY = "run by the CPU executor"
_DEVICE = f"{_RUN_BY}, not by the device: this explains compression and arithmetic, no more"
_WEIGHT = ("weight", "stored as", "restored", "alone", "share", "mended by")
_OPERATION = ("operation", "result", "on exact inputs", "inputs", "output", "")
_HALF = 0.5
_NAMED = 3
"""Probes that are named."""


def lines(blame: Blame, *, on_device: bool = False) -> Iterator[str]:
    """A few lines and two tables of at most five rows; `on_device` says where the gate ran."""
    yield from map(printable, _lines(blame, on_device=on_device))


def _lines(blame: Blame, *, on_device: bool) -> Iterator[str]:
    yield from _errors(blame, on_device=on_device)
    if blame.without:
        yield blame.without
    if blame.weights:
        yield from _weights(blame)
    if blame.absent and not blame.without:
        named = ", ".join(blame.absent[:_NAMED]) + (" ..." if len(blame.absent) > _NAMED else "")
        yield (
            f"{len(blame.absent)} more have no counterpart in the uncompressed package and stayed "
            f"compressed: {named}"
        )
    yield from _operations(blame.operations)


def _errors(blame: Blame, *, on_device: bool) -> Iterator[str]:
    named = ", ".join(blame.probes[:_NAMED]) + (" ..." if len(blame.probes) > _NAMED else "")
    what = "contribution" if blame.contribution else "output"
    yield (
        f"relative error of the {what} on the worst {len(blame.probes)} of {blame.of} probes "
        f"({named})"
    )
    exact = "" if math.isnan(blame.exact) else f", {number(blame.exact)} with every weight exact"
    yield f"{number(blame.error)} as it is{exact}; {_DEVICE if on_device else _RUN_BY}"


def _weights(blame: Blame) -> Iterator[str]:
    shown = blame.weights[:WORST]
    rows: list[tuple[str, ...]] = [
        ("weight", "stored as", "restored", "alone", "share", "mended by")
    ]
    rows += [_weight(culprit) for culprit in shown]
    yield from _table(rows, words=2)
    if more := len(blame.weights) - len(shown):
        left = sum(c.share for c in blame.weights[WORST:])
        yield f"... and {more} more weights, together {share(left)}"
    if shown[0].share < _HALF:
        yield (
            f"no weight makes half of the squared error: the worst {len(shown)} make "
            f"{share(sum(c.share for c in shown))}"
        )
    mended = next((c for c in shown if c.mend), None)
    if mended is not None and mended.mend is not None:
        entry = override(mended.weight.name, mended.mend)
        yield f"for compression.overrides in shards.toml: {{ {entry} }}"


def _weight(culprit: Culprit) -> tuple[str, ...]:
    weight = culprit.weight
    bits = f"{weight.storage.removeprefix('constexpr_')}, {weight.nbits} bits"
    groups = f" x {weight.groups * weight.blocks}" if weight.groups else ""
    return (
        weight.name,
        bits + groups,
        number(culprit.restored),
        number(culprit.alone),
        share(culprit.share),
        "-" if culprit.mend is None else _mend(culprit.mend),
    )


def _mend(mend: Mend) -> str:
    return f"{settings(mend.settings)}: {number(mend.error)}, {mend.more:+,} bytes"


def settings(asked: Settings) -> str:
    """`6-bit kmeans, groups of 16`, `int8 per channel` or `fp16`."""
    if isinstance(asked, Palettize):
        tensor = asked.granularity == "per_tensor"
        return f"{asked.nbits}-bit {asked.mode}, " + (
            "one table" if tensor else f"groups of {asked.group_size}"
        )
    if isinstance(asked, Linear):
        return f"{asked.dtype} {asked.granularity.replace('_', ' ')}"
    return "fp16"


def override(name: str, mend: Mend) -> str:
    """The keys of an entry of `compression.overrides`."""
    asked = mend.settings
    given: dict[str, object] = {"weights": name, "method": asked.method}
    if isinstance(asked, Palettize):
        given |= {"mode": asked.mode, "nbits": asked.nbits, "granularity": asked.granularity}
        if asked.granularity != "per_tensor":
            given["group_size"] = asked.group_size
    elif isinstance(asked, Linear):
        given |= {"dtype": asked.dtype, "granularity": asked.granularity}
    return ", ".join(
        f'{key} = "{value}"' if isinstance(value, str) else f"{key} = {value}"
        for key, value in given.items()
    )


def _operations(found: Sequence[Suspect]) -> Iterator[str]:
    shown = [suspect for suspect in found[:WORST] if suspect.own > 0 or math.isnan(suspect.own)]
    if not shown:
        yield f"all {len(found)} operations agree with float32 on the same inputs"
        return
    rows: list[tuple[str, ...]] = [
        ("operation", "result", "on exact inputs", "inputs", "output", "")
    ]
    rows += [_operation(suspect) for suspect in shown]
    yield from _table(rows, words=2)


def _operation(suspect: Suspect) -> tuple[str, ...]:
    notes = [f"takes {name}" for name in suspect.weights]
    notes += [f"overflows fp16: {suspect.peak:,.0f} in float32"] if suspect.overflows else []
    notes += [f"underflows fp16: {number(suspect.peak)} at most"] if suspect.underflows else []
    own, inputs, output = map(number, (suspect.own, suspect.inputs, suspect.output))
    return (suspect.op, suspect.name, own, inputs, output, ", ".join(notes))


def number(value: float) -> str:
    """Three digits; `inf` and `NaN` by name."""
    return "NaN" if math.isnan(value) else f"{value:.3g}"


def share(value: float) -> str:
    """Per cent; a share that is infinitely negative is said in words."""
    return "worse" if value == -math.inf else f"{value:.1%}"


def _table(rows: Sequence[tuple[str, ...]], *, words: int) -> Iterator[str]:
    """Aligned columns: texts and the last to the left, numbers to the right."""
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    for row in rows:
        cells = [
            f"{cell:{'<' if i < words or i == len(row) - 1 else '>'}{widths[i]}}"
            for i, cell in enumerate(row)
        ]
        yield "  ".join(cells).rstrip()
