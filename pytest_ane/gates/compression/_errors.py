"""Verdict on the errors of weights: what compression lost, against what its scheme needs."""

from __future__ import annotations

import math
from collections.abc import Iterator

from pytest_ane.gates.compression.measure import CompressionMeasurement
from pytest_ane.gates.verdict import Figure, Finding, Limits, Where, bounds
from pytest_ane.make.distortion import FP16, Distortion
from pytest_ane.manifest import Compression
from pytest_ane.manifest.policy import CompressionPolicy

_COMPARED = ("build", "uncompressed", "reference")
"""What weights are compared with to be judged: the program before compression."""
_ROW = 4.0
"""What a row, an output channel, may cost of what its scheme needs. A row of a k-means table that
we did not make is taken to need at least 3 times the mean of the rows that share it. On weights of
SmolLM2-135M coremltools' k-means is at 2.63 at most; a table of zeros costs hundreds."""
_STEPS = 2.0
"""Steps of fp16 that a value which is not compressed may differ by, for converters round constants
that they fold in various ways."""


def figures(measurement: CompressionMeasurement, policy: CompressionPolicy) -> Iterator[Figure]:
    """How far weights are from what their schemes reach, and how many are missing."""
    compressed = [d for d in _judged(measurement) if d.scheme != FP16]
    if compressed:
        most = limits(policy)
        worst = max(compressed, key=lambda d: d.error or 0)
        yield _ratio("max_weight_error", worst.error or 0, "error of a weight", worst.name, most)
        worst = max(compressed, key=lambda d: d.row_error or 0)
        yield _ratio("max_weight_row_error", worst.row_error or 0, "error of a row",
                     f"{worst.name} {_rows(worst)}", most)  # fmt: skip
    if measurement.against in _COMPARED:
        missing = len(measurement.missing)
        yield Figure("weights_missing", missing, "weights missing")


def limits(policy: CompressionPolicy) -> Limits:
    """What a policy asks of figures."""
    return bounds(
        "below",
        max_weight_error=policy.max_weight_error,
        max_weight_row_error=_ROW,
    )


def _ratio(name: str, value: float, label: str, weight: str, limits: Limits) -> Figure:
    """A ratio with its limit where that decides: below it, the size is what a row should show."""
    limit, good = limits[name]
    return Figure(name, round(value, 4), "x what its scheme needs", label, note=weight, good=good,
                  limit=limit if value > limit else None)  # fmt: skip


def findings(
    measurement: CompressionMeasurement, policy: CompressionPolicy, asked: Compression | None
) -> Iterator[Finding]:
    """Weights that are missing, differ, or lose more than their schemes do; and what is unknown."""
    if measurement.against == "changed":
        yield Finding(
            "failed",
            "The package has other bytes than those whose weights its build measured",
            remedy="run 'pytest-ane cache prune', and it is built again",
        )
    if measurement.against in _COMPARED:
        yield from _missing(measurement)
        yield from _numbers(measurement)
        for d in sorted(_judged(measurement), key=lambda d: -(d.row_error or 0)):
            yield from _lost(d, policy)
    yield from _not_judged(measurement, asked)


def _judged(measurement: CompressionMeasurement) -> list[Distortion]:
    """Distortions with a yardstick, of weights that were compared with their uncompressed form."""
    compared = measurement.against in _COMPARED
    return [d for d in measurement.distortions if compared and d.reached is not None]


def _missing(measurement: CompressionMeasurement) -> Iterator[Finding]:
    if measurement.missing and not measurement.distortions:
        yield Finding(
            "failed",
            f"None of the {len(measurement.missing)} weights of the uncompressed package is in the "
            "package by name and shape, so it is another program",
            remedy="name the package's own program before compression as 'uncompressed'",
            figure="weights_missing",
        )
        return
    for name in measurement.missing:
        yield Finding(
            "failed",
            f"{name} of the uncompressed program is not in the package",
            Where(weight=name),
            kind="of the uncompressed program are not in the package",
            figure="weights_missing",
        )
    for name in measurement.extra:
        yield Finding(
            "warned",
            f"{name} is not in the uncompressed program, so its error is unknown",
            Where(weight=name),
            kind="are not in the uncompressed program, so their errors are unknown",
        )


def _numbers(measurement: CompressionMeasurement) -> Iterator[Finding]:
    for name in measurement.changed:
        yield Finding(
            "failed",
            f"The constant {name} is another number than in the uncompressed program",
            Where(weight=name),
            kind="are other numbers than in the uncompressed program",
        )


def _lost(d: Distortion, policy: CompressionPolicy) -> Iterator[Finding]:
    total, row, where = d.error or 0.0, d.row_error or 0.0, Where(weight=d.name)
    rows = _rows(d)
    if d.scheme == FP16:
        if row > _STEPS**2:
            yield Finding(
                "failed",
                f"{d.name} is not compressed, but {rows} differ from the uncompressed weight by up "
                f"to {_times(math.sqrt(row))} steps of fp16",
                where,
                kind="are not compressed, but differ from the uncompressed weights",
            )
    elif row > _ROW:
        yield Finding(
            "failed",
            f"compression: {d.name} {rows} cost {_times(row)} times what {d.scheme} needs "
            f"(at most {_ROW:g})",
            where,
            kind=f"have rows that cost over {_ROW:g} times what their compression needs",
            figure="max_weight_row_error",
        )
    elif total > (limit := policy.max_weight_error):
        yield Finding(
            "failed",
            f"compression: {d.name} costs {_times(total)} times what {d.scheme} needs "
            f"(max-weight-error = {limit:g})",
            where,
            kind=f"cost over {limit:g} times what their compression needs",
            figure="max_weight_error",
        )


def _rows(d: Distortion) -> str:
    first, last = d.rows
    return f"row {first}" if first == last else f"rows {first} to {last}"


def _times(ratio: float) -> str:
    """`1.3`, `27.6`, `12,400`."""
    return f"{ratio:.3g}" if ratio < 100 else f"{ratio:,.0f}"


def _not_judged(
    measurement: CompressionMeasurement, asked: Compression | None
) -> Iterator[Finding]:
    """Compressed weights whose errors nobody can judge, and why."""
    compressed = {w.name for w in measurement.census.weights if w.stages}
    if measurement.against == "nothing" and compressed:
        count = len(compressed)
        weights = f"{count} compressed {'weight' if count == 1 else 'weights'}"
        yield Finding(
            "note",
            f"{weights} could not be compared, for the program before compression is not known",
            remedy='add uncompressed = "x-fp16.mlpackage" to the shard\'s table',
        )
    if measurement.against not in _COMPARED:
        return
    for d in measurement.distortions:
        if d.reached is None and d.name in compressed and math.isfinite(d.sse):
            reason = f"nothing says what {d.scheme} should reach"
            if asked is None:
                reason = "the manifest does not say how it was to be compressed"
            elif not d.scheme:
                reason = "it was not to be compressed"
            yield Finding(
                "note",
                f"The error of {d.name} was not judged: {reason}",
                Where(weight=d.name),
                kind=f"have errors that were not judged: {reason}",
            )
