"""How speeds are written."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from pytest_ane.gates.throughput.baseline import Baseline, Missing
from pytest_ane.gates.throughput.speed import Speed


def title(speed: Speed) -> str:
    """`decoding`, `load`, or a call with its positions, `T=4`; `call` where they are not known."""
    call = f"T={speed.tokens}" if speed.tokens else "call"
    return {"load": "load", "decode": "decoding", "call": call}[speed.what]


def figure(speed: Speed) -> str:
    """`9.25 tok/s`; where a round computes none, its median, `812.5 ms`."""
    rate = speed.tok_s
    if rate is None:
        return seconds(speed.median)
    return f"{rate:.2f} tok/s" if rate < 100 else f"{rate:,.0f} tok/s"


def seconds(value: float) -> str:
    """`1.25 s`, `812.5 ms`, `0.3 ms`."""
    return f"{value:.2f} s" if value >= 1 else f"{1000 * value:.4g} ms"


def percent(share: float, *, signed: bool = False) -> str:
    """`5 %`, `12.4 %`; `+12.4 %` with a sign."""
    return f"{100 * share:{'+' if signed else ''}.3g} %"


def machine(speed: Speed) -> str:
    """What two runs must share, in one line."""
    return ", ".join(filter(None, speed.identity.values())) or "an unknown machine"


def details(now: Speed, baseline: Baseline | Missing | None) -> Iterator[str]:
    """The figures behind a verdict, and what changed since the baseline but the speed."""
    low, high = min(now.seconds), max(now.seconds)
    yield (
        f"now       {figure(now)}: median {seconds(now.median)} of {len(now.seconds)} rounds, "
        f"{seconds(low)} to {seconds(high)}"
    )
    if now.batches > 1:
        yield f"slower at first: timed {now.batches} times, and the fastest counts"
    if isinstance(baseline, Missing):
        yield baseline.why
    if not isinstance(baseline, Baseline):
        return
    then = baseline.speed
    yield f"baseline  {figure(then)}: median {seconds(then.median)}, run {baseline.run}"
    if (noise := baseline.noise) is not None:
        yield (
            f"noise     sigma {percent(noise.sigma)} of {noise.runs} unchanged runs, itself known "
            f"to {percent(noise.uncertainty)}; 2.8 sigma is {percent(noise.limit)}"
        )
    if then.yardstick is not None and now.yardstick is not None:
        took, takes = seconds(then.yardstick), seconds(now.yardstick)
        yield f"machine   its yardstick took {took}, takes {takes}"
    yield from _parts(now.profile, then.profile)
    if changed := [n for n, digest in now.artifacts.items() if then.artifacts.get(n) != digest]:
        more = f" and {len(changed) - 5} more" if len(changed) > 5 else ""
        yield f"packages changed since: {', '.join(changed[:5])}{more}"
    for key, value in now.state.items():
        if (before := then.state.get(key)) not in (None, value):
            yield f"{key} was {before!r}, is {value!r}"


def _parts(now: Mapping[str, float], then: Mapping[str, float]) -> Iterator[str]:
    """Parts that both have, the one that lost most time first."""
    both = sorted(now.keys() & then.keys(), key=lambda part: then[part] - now[part])
    for part in both:
        yield f"{part:<9} {seconds(then[part])} -> {seconds(now[part])}"
