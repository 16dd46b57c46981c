"""The bound of a model's speed: a table for each T, and what would help."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from textwrap import wrap

from pytest_ane.report.table import columns
from pytest_ane.tools._bound_analysis import CallBound, Group, KindBound
from pytest_ane.tools._devices import Device
from pytest_ane.tools._measured import Measured

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
    """The whole report.

    Args:
        name: of the model or the package.
        device: the profile that the bound is of.
        groups: which shards were counted for how many.
        calls: one for each T.
        measured: speeds to show at their T.
    """
    yield f"{name} on {_device(device)}"
    yield from _counted(groups)
    if held := calls[0].total.held:
        yield f"KV cache and other states: {_mega(held)} MB"
    for call in calls:
        yield ""
        yield from _call(call, device)
        for one in measured:
            if one.tokens == (call.tokens or 1):
                yield _measured(one, call, device)
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
    """The shards that represent others."""
    represent = [f"{g.subject} for {g.count} of {g.kind}" for g in groups if g.count > 1]
    if represent:
        yield from wrap(f"counted: {', '.join(represent)}", 80, subsequent_indent="  ")


def _call(call: CallBound, device: Device) -> Iterator[str]:
    unit, total = _unit(call), call.total.seconds
    yield "fixed shapes" if call.tokens is None else f"T = {call.tokens}"
    yield from _table(call)
    yield f"at most {_rate(call.rate)} {unit}/s ({_ms(total)} ms a call)"
    for what, seconds in (
        ("weights of half the bytes", call.half_weights),
        ("half the MACs", call.half_macs),
    ):
        # Sums in another order differ in their last bits: no -0 %.
        more = round(total / seconds - 1, 6) + 0.0
        yield f"  {what}: {_rate(call.rate_of(seconds))} {unit}/s ({more:+.0%})"
    if device.lanes > 1 and abs(call.unpadded / total - 1) > 1e-3:
        yield f"  without padding to the lane width: {_rate(call.rate_of(call.unpadded))} {unit}/s"


def _measured(measured: Measured, call: CallBound, device: Device) -> str:
    """Our speed with its share of the bound, or another runtime's and its energy."""
    here = measured.device == device.name.partition(" with ")[0]
    share = f", {measured.tok_s / call.rate:.0%} of the bound" if here else ""
    joules = measured.joules_per_token
    energy = "" if joules is None else f", {joules:.3g} J a token"
    where = "" if here else f" on {measured.device}"
    speed = f"{_rate(measured.tok_s)} {_unit(call)}/s"
    return f"  {measured.runtime}{where}: {speed}{share}{energy}"


def _unit(call: CallBound) -> str:
    return "call" if call.tokens is None else "tok"


def _table(call: CallBound) -> Iterator[str]:
    rows = [_COLUMNS, *map(_row, call.kinds)]
    if len(call.kinds) > 1:
        *figures, _ = _row(call.total)
        rows.append((*figures[:5], "", *figures[6:], ""))
    yield from columns(rows, last=True, gap=" ")


def _row(kind: KindBound) -> tuple[str, ...]:
    return (
        kind.kind,
        str(kind.count),
        _mega(kind.weights),
        _mega(kind.states),
        f"{kind.macs / 1e9:.3f}",
        f"{kind.intensity:.1f}",
        _ms(kind.streaming),
        _ms(kind.computing),
        _ms(kind.seconds),
        _BINDS.get(kind.bound_by, kind.bound_by),
    )


def _mega(count: int) -> str:
    return f"{count / 1e6:.1f}"


def _ms(seconds: float) -> str:
    return f"{1000 * seconds:.3f}" if seconds < 0.001 else f"{1000 * seconds:.2f}"


def _rate(rate: float) -> str:
    return f"{rate:.0f}" if rate >= 100 else f"{rate:.3g}"
