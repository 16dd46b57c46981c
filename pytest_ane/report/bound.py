"""What bounds a model's speed: a table for each T, and what would help."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from textwrap import wrap

from pytest_ane.analysis.bound import Call, Group, Part
from pytest_ane.analysis.devices import Device

_COLUMNS = (
    "kind", "shards", "weight MB", "state MB", "GMAC", "FLOP/B",
    "bytes ms", "MACs ms", "ms", "by",
)  # fmt: skip
_BINDS = {"bandwidth": "bytes", "compute": "MACs"}


def lines(
    name: str,
    device: Device,
    groups: Sequence[Group],
    calls: Sequence[Call],
    measured: Mapping[int, float],
) -> Iterator[str]:
    """The whole report.

    Args:
        name: of the model or the package.
        device: what bounds it.
        groups: which shards were counted for how many.
        calls: one for each T.
        measured: tokens a second by T.
    """
    yield f"{name} on {_device(device)}"
    yield from _counted(groups)
    if held := sum(part.held for part in calls[0].parts):
        yield f"states hold {_mega(held)} MB"
    for call in calls:
        yield ""
        yield from _call(call, device, measured.get(call.tokens or 1))
    yield ""
    yield "A bound, no forecast: launches, host and what does not overlap come on top."


def _device(device: Device) -> str:
    lanes = f", axes of {device.lanes}" if device.lanes > 1 else ""
    held = f", weights of {device.held} bytes" if device.held else ""
    ridge = f"ridge {device.ridge:.3g} FLOP/B"
    return (
        f"{device.name}: {device.bandwidth:g} GB/s, {device.peak:g} TFLOP/s, {ridge}{lanes}{held}"
    )


def _counted(groups: Sequence[Group]) -> Iterator[str]:
    """Which shard stands for which others; those that stand for themselves need no word."""
    stand = [f"{g.subject} for {g.count} of {g.kind}" for g in groups if g.count > 1]
    if stand:
        yield from wrap(f"counted: {', '.join(stand)}", 80, subsequent_indent="  ")


def _call(call: Call, device: Device, measured: float | None) -> Iterator[str]:
    unit = "call" if call.tokens is None else "tok"
    yield "fixed shapes" if call.tokens is None else f"T = {call.tokens}"
    yield from _table(call)
    yield f"at most {_rate(call.rate)} {unit}/s ({_ms(call.seconds)} ms a call)"
    for what, seconds in (
        ("weights of half the bytes", call.half_weights),
        ("half the MACs", call.half_macs),
    ):
        # Sums in another order differ in their last bits: no -0 %.
        more = round(call.seconds / seconds - 1, 6) + 0.0
        yield f"  {what}: {_rate(call.rate_of(seconds))} {unit}/s ({more:+.0%})"
    if device.lanes > 1 and abs(call.bare / call.seconds - 1) > 1e-3:
        yield f"  no axis filled up: {_rate(call.rate_of(call.bare))} {unit}/s"
    if measured is not None:
        yield f"  measured: {_rate(measured)} {unit}/s, {call.share(measured):.0%} of the bound"


def _table(call: Call) -> Iterator[str]:
    rows = [_COLUMNS, *map(_row, call.parts)]
    if len(call.parts) > 1:
        rows.append(_all(call))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        cells = [f"{cell:>{width}}" for cell, width in zip(row[1:-1], widths[1:-1], strict=True)]
        yield f"{row[0]:<{widths[0]}} {' '.join(cells)} {row[-1]}".rstrip()


def _row(part: Part) -> tuple[str, ...]:
    return (
        part.kind,
        str(part.count),
        _mega(part.weights),
        _mega(part.states),
        _giga(part.macs),
        f"{part.intensity:.1f}",
        _ms(part.streaming),
        _ms(part.computing),
        _ms(part.seconds),
        _BINDS.get(part.bound_by, part.bound_by),
    )


def _all(call: Call) -> tuple[str, ...]:
    parts = call.parts
    return (
        "all",
        str(sum(part.count for part in parts)),
        _mega(sum(part.weights for part in parts)),
        _mega(sum(part.states for part in parts)),
        _giga(sum(part.macs for part in parts)),
        "",
        _ms(sum(part.streaming for part in parts)),
        _ms(sum(part.computing for part in parts)),
        _ms(call.seconds),
        "",
    )


def _mega(count: int) -> str:
    return f"{count / 1e6:.1f}"


def _giga(count: int) -> str:
    return f"{count / 1e9:.3f}"


def _ms(seconds: float) -> str:
    return f"{1000 * seconds:.3f}" if seconds < 0.001 else f"{1000 * seconds:.2f}"


def _rate(rate: float) -> str:
    return f"{rate:.0f}" if rate >= 100 else f"{rate:.3g}"
