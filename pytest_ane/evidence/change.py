"""What differs between two statements of the same subject, in lines for people."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from functools import singledispatch
from typing import Any

import numpy as np

from pytest_ane.evidence.codec import Measurement, to_data
from pytest_ane.evidence.statement import Statement, plain
from pytest_ane.gates.behaviour import Behaviour
from pytest_ane.gates.compression.measure import CompressionMeasurement
from pytest_ane.gates.fidelity import Fidelity
from pytest_ane.gates.placement.plans import Plan, summarise

_LONGEST = 100


def changes(old: Statement, new: Statement) -> Iterator[str]:
    """One line for everything that differs, such as `cosine min 0.981204 -> 0.980917`.

    Times of recording are left out: they always differ.
    """
    if old.subject != new.subject or old.gate != new.gate:
        yield f"{old.subject} {old.gate} -> {new.subject} {new.gate}"
    names = old.files.keys() | new.files.keys()
    if count := sum(old.files.get(name) != new.files.get(name) for name in names):
        yield f"{count} file{'s' if count > 1 else ''} changed, of {len(names)}"
    yield from _differences(old.environment, new.environment)
    yield from _differences(plain(old.asked), plain(new.asked), "asked ")
    if type(old.measurement) is not type(new.measurement):
        return
    lines = list(_differences(figures(old.measurement), figures(new.measurement)))
    yield from lines
    if not lines and to_data(old.measurement) != to_data(new.measurement):
        yield "single numbers differ, their figures do not"


@singledispatch
def figures(measurement: Measurement) -> dict[str, str]:
    """What a measurement comes to, before any policy: words by name, for people."""
    raise TypeError(f"no measurement: {measurement!r}")


@figures.register
def _(plan: Plan) -> dict[str, str]:
    found = summarise(plan)
    return {
        "placement": found.outcome,
        "ops on ANE": f"{found.devices.get('ANE', 0)}/{found.compute}",
        "ops on GPU": str(found.devices.get("GPU", 0)),
        "ops on CPU": str(found.devices.get("CPU", 0)),
        "ops without a device": str(found.unassigned),
        "convolutions on ANE": f"{found.conv_ane}/{found.conv_total}",
        "compile-time ops": str(sum(found.compile_time.values())),
    }


@figures.register
def _(found: CompressionMeasurement) -> dict[str, str]:
    losses = [one.snr for one in found.distortions if one.snr != math.inf]
    return {
        "bytes": f"{found.size:,}",
        "weights": str(len(found.census.weights)),
        "weights compressed": str(sum(bool(one.stages) for one in found.census.weights)),
        "bytes of weights": f"{found.census.stored_bytes:,}",
        "lowest SNR in dB": _lowest(losses, ".2f"),
    }


@figures.register
def _(fidelity: Fidelity) -> dict[str, str]:
    cosines = [value for one in fidelity.rest for value in one.cosines]
    first = [value for one in fidelity.first for value in one.cosines]
    added = [value for one in fidelity.rest for value in one.contributions]
    errors = [-value for one in fidelity.rest for value in one.relative]
    return {
        "probes": str(len({one.probe for one in fidelity.comparisons})),
        "cosine min": _lowest(cosines, ".6f"),
        "cosine mean": f"{np.mean(cosines):.6f}" if cosines else "none",
        "cosine min at position 0": _lowest(first, ".6f"),
        "contribution min": _lowest(added, ".6f"),
        "relative L2 max": _lowest(errors, ".4g", -1),
        "finite": _lowest([one.finite for one in fidelity.comparisons], ".6g"),
        "largest input": _lowest([-one.input_max for one in fidelity.comparisons], ",.1f", -1),
    }


@figures.register
def _(behaviour: Behaviour) -> dict[str, str]:
    positions = [p for prompt in behaviour.prompts for p in prompt.positions[1:]]
    return {
        "prompts": str(len(behaviour.prompts)),
        "positions": str(len(positions)),
        "top-1": f"{np.mean([p.top1 for p in positions]):.1%}" if positions else "none",
        "KL": f"{np.mean([p.kl for p in positions]):.4f}" if positions else "none",
        "centred cosine min": _lowest([p.centred_cosine for p in positions], ".4f"),
        "greedy": " ".join(f"{p.agreed}/{len(p.expected)}" for p in behaviour.prompts) or "none",
        "shard alone min": _lowest([value for _, value in behaviour.alone], ".6f"),
    }


def _lowest(values: list[float], form: str, sign: int = 1) -> str:
    """The lowest value, NaN if any is; `none` of none."""
    return format(sign * float(np.min(values)), form) if values else "none"


def _differences(old: Mapping[str, Any], new: Mapping[str, Any], prefix: str = "") -> Iterator[str]:
    for key in dict.fromkeys((*old, *new)):
        if old.get(key) != new.get(key):
            yield f"{prefix}{key} {_shown(old.get(key))} -> {_shown(new.get(key))}"


def _shown(value: Any) -> str:
    text = "none" if value is None else str(value)
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST // 2]}...{text[-_LONGEST // 2 :]}"
