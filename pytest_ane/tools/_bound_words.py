"""The bound of a model's speed: a table for each T, and what would help."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from textwrap import wrap
from typing import Annotated

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError

from pytest_ane.gates.throughput.speed import Speed
from pytest_ane.gates.throughput.stored import read_stored
from pytest_ane.mlprogram.errors import ManifestError
from pytest_ane.report.table import columns
from pytest_ane.tools._bound import CallBound, Group, KindBound
from pytest_ane.tools._devices import THIS_MACHINE, Device

# Measured speeds to show next to a bound: a stored run of ours, or another runtime's JSON.

_LARGEST = 1 << 28
"""Bytes of a file."""


def _printable(text: str) -> str:
    if not text.isprintable():
        raise ValueError("has characters that cannot be printed")
    return text


_Text = Annotated[str, Field(min_length=1, max_length=300), AfterValidator(_printable)]
_Rate = Annotated[float, Field(gt=0)]


class Measured(BaseModel):
    """A measured speed of decoding; another runtime's is handed in as JSON with these keys.

    Attributes:
        runtime: name and version: `mlx-lm 0.21, 4 bit`.
        device: `M4 Max GPU`; a share of the bound is shown only where it is the bound's device.
        model: as the manifest names it.
        tok_s: tokens a second.
        tokens: T, positions of a call.
        joules_per_token: energy, where somebody measured it.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    runtime: _Text
    device: _Text
    model: _Text
    tok_s: _Rate
    tokens: Annotated[int, Field(ge=1, le=1 << 16)] = 1
    joules_per_token: _Rate | None = None


def read_measured(file: Path, model: str, device: Device) -> Measured:
    """A model's speed from a file.

    Args:
        file: a run of pytest-benchmark (`--benchmark-json`, `--benchmark-autosave`), of which the
            decoding is taken, or a JSON object as `Measured` has it.
        model: the model's name.
        device: of the bound; a run of ours on another one is refused.

    Raises:
        ManifestError: the file cannot be read, is neither, or is of another model or device.
        UnprovenError: it is a damaged run of pytest-benchmark.
    """
    try:
        if file.stat().st_size > _LARGEST:
            raise ManifestError(f"--measured {file}: is too large for a measured speed.")
        data = json.loads(file.read_bytes())
        if isinstance(data, dict) and "benchmarks" in data:
            return _decoding(file, model, device)
        measured = Measured.model_validate(data)
    except OSError as error:
        raise ManifestError(f"--measured {file}: cannot be read ({error.strerror}).") from None
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join(map(str, first["loc"]))
        raise ManifestError(
            f"--measured {file}: {': '.join(filter(None, (key, first['msg'].lower())))}; give an "
            "object with runtime, device, model and tok_s, or a stored run of pytest-benchmark."
        ) from None
    except (ValueError, RecursionError) as error:
        raise ManifestError(f"--measured {file}: is no JSON ({error}).") from None
    if measured.model != model:
        raise ManifestError(f"--measured {file}: is of {measured.model}, and the bound of {model}.")
    return measured


def _decoding(file: Path, model: str, device: Device) -> Measured:
    speeds = read_stored(file).speeds.values()
    decoding = [s for s in speeds if s.what == "decode" and s.subject == model and s.tok_s]
    if not decoding:
        raise ManifestError(f"--measured {file}: holds no decoding of {model}.")
    speed, name = decoding[-1], device.name.partition(" with ")[0]
    ran_on = _device(speed)
    if ran_on not in (None, name):
        raise ManifestError(
            f"--measured {file}: was measured on {ran_on}, and the bound is of {device.name}; "
            f"give --device '{ran_on}'."
        )
    return Measured(runtime="measured", device=name, model=model, tok_s=speed.tok_s or 0.0)


def _device(speed: Speed) -> str | None:
    """The profile's name of the device that a run was on."""
    if speed.identity.get("backend") == "cpu":
        return THIS_MACHINE
    return speed.identity.get("chip", "").removeprefix("Apple ") or None


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
    yield f"{name} on {_device_bound_words(device)}"
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


def _device_bound_words(device: Device) -> str:
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
