"""Verdict of the compression gate: what was asked for every weight, and the size budget."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence

from pytest_ane.gates.compression.measure import CompressionMeasurement, palettes_table
from pytest_ane.gates.verdict import (
    RATIO,
    Cell,
    Column,
    Figure,
    Finding,
    Limits,
    Severity,
    Table,
    Verdict,
    Where,
    bounds,
    limited,
)
from pytest_ane.make.distortion import FP16, Distortion, steps_for
from pytest_ane.manifest import (
    Compression,
    Linear,
    Palettize,
    Prune,
    Step,
    Uncompressed,
)
from pytest_ane.manifest.policy import CompressionPolicy
from pytest_ane.mlprogram.text import size_ratio
from pytest_ane.mlprogram.weights import SPARSE, Census, Stage, Weight

_REMEDY = "choose a setting that fits its shape, or name it in compression.keep"


def judge(
    measurement: CompressionMeasurement,
    policy: CompressionPolicy,
    subject: str,
    asked: Compression | None,
) -> Verdict:
    """Hold every weight against what was asked for it, and the size against the budget.

    Of a package of unknown making, without `asked`, only the budget is held.
    """
    census, notes = measurement.census, measurement.notes
    # A shard may rightly have none, such as an encoder's pooling; then its size is what it asks.
    checked = census.weights or (isinstance(asked, Uncompressed) and policy.max_bytes is not None)
    empty = Finding(
        "unproven",
        "The program has no weights, so there was nothing to check",
        remedy="if it needs none, set its compression to 'none' and its max-bytes",
    )
    return Verdict(
        gate="compression",
        subject=subject,
        figures=tuple(_figures(measurement, policy)),
        findings=(
            *_weights(census, asked, notes),
            *_errors(measurement, policy, asked),
            *_budget(measurement, policy),
            *_not_finite(measurement.distortions),
            *_coarse(census, policy),
            *(() if checked else (empty,)),
        ),
        tables=(
            weights_table(census, asked, notes, measurement.distortions),
            *([palettes_table(measurement.palettes)] if measurement.palettes else []),
        ),
    )


def figures(measurement: CompressionMeasurement) -> tuple[Figure, ...]:
    """Bytes, the ratio to fp16, weights, and the lowest SNR of a weight."""
    return tuple(_figures(measurement, CompressionPolicy()))


def limits(policy: CompressionPolicy) -> Limits:
    """What a policy asks of figures."""
    return {
        **bounds(
            "below",
            size_bytes=policy.max_bytes,
            max_weight_error=policy.max_weight_error,
            max_weight_row_error=_ROW,
        ),
        **bounds("above", ratio=policy.min_ratio),
    }


def _figures(measurement: CompressionMeasurement, policy: CompressionPolicy) -> Iterator[Figure]:
    yield from limited(_measured(measurement), limits(policy))
    yield from _error_figures(measurement, policy)


def _measured(measurement: CompressionMeasurement) -> Iterator[Figure]:
    census, size = measurement.census, measurement.size
    compressed = [weight for weight in census.weights if weight.stages]
    own = size - measurement.others
    ratio = round(census.dense_bytes / own, 4) if own else 0.0
    yield Figure("size_bytes", size, "bytes", shown=True)
    some = bool(census.weights)
    yield Figure("ratio", ratio, RATIO, shown=some)
    yield Figure("weights", len(census.weights), "weights", shown=not some)
    yield Figure("weights_compressed", len(compressed), "weights compressed",
                 of=len(census.weights), note=_kinds(compressed), shown=some)  # fmt: skip
    lossy = [d for d in measurement.distortions if d.snr < math.inf]
    if worst := min(lossy, key=lambda d: d.snr, default=None):
        yield Figure("min_snr_db", round(worst.snr, 3), "dB", "lowest SNR", note=worst.name,
                     shown=True)  # fmt: skip
        yield Figure("min_snr_weight", worst.name)


def _weights(census: Census, asked: Compression | None, notes: Sequence[str]) -> Iterator[Finding]:
    for weight in census.weights if asked is not None else ():
        settings = asked.for_weight(weight.name, weight.op_types) if asked else Uncompressed()
        if isinstance(settings, Uncompressed):
            if weight.stages:
                yield Finding(
                    "failed",
                    f"{weight.name} was to stay fp16 but is stored as {weight.storage}",
                    Where(weight=weight.name),
                    kind="are compressed though they were to stay fp16",
                )
        elif steps := steps_for(weight, settings):
            yield from _undone(weight, steps, notes)


def _coarse(census: Census, policy: CompressionPolicy) -> Iterator[Finding]:
    """Large weights with one scale; reason: an outlier sets it, and all others get fewer levels."""
    over = policy.int8_per_tensor_over
    for weight in census.weights if over is not None else ():
        scales = [stage.count for stage in weight.stages if stage.is_quantization]
        if over is not None and weight.elements > over and 1 in scales:
            yield Finding(
                "failed",
                f"{weight.name} {list(weight.shape)} has {weight.elements:,} elements, over "
                f"{over:,} (policy.compression.int8-per-tensor-over), and one scale for all of "
                "them, which its outliers set",
                Where(weight=weight.name),
                "use per_channel, or palettes per_grouped_channel",
                f"have one scale for more than {over:,} elements",
            )


def _not_finite(distortions: Sequence[Distortion]) -> Iterator[Finding]:
    for distortion in distortions:
        if not math.isfinite(distortion.sse):
            yield Finding(
                "failed",
                f"{distortion.name} holds NaN or infinity, compressed or before, so its error is "
                "unknown",
                Where(weight=distortion.name),
                kind="hold NaN or infinity",
            )


def _budget(measurement: CompressionMeasurement, policy: CompressionPolicy) -> Iterator[Finding]:
    size, dense = measurement.size, measurement.census.dense_bytes
    own = size - measurement.others
    if policy.max_bytes is not None and size > policy.max_bytes:
        yield Finding(
            "failed",
            f"The package has {size:,} bytes, above max-bytes = {policy.max_bytes:,}",
            figure="size_bytes",
        )
    if policy.min_ratio is not None and dense < policy.min_ratio * own:
        yield Finding(
            "failed",
            f"The package is {size_ratio(dense / own, 3)}, below min-ratio = {policy.min_ratio:g}",
            figure="ratio",
        )


def _kinds(weights: list[Weight]) -> str:
    kinds = Counter(f"{w.storage.removeprefix('constexpr_')} {w.nbits}-bit" for w in weights)
    return ", ".join(f"{n} {kind}" for kind, n in kinds.items())


def weights_table(
    census: Census,
    asked: Compression | None,
    notes: Sequence[str] = (),
    distortions: Sequence[Distortion] = (),
) -> Table:
    """All weights: asked, stored, bytes, error, and why a weight was declined.

    What is not known is empty: without `asked` its column, without `distortions` the errors.
    """
    by_name = {d.name: d for d in distortions}
    heads = ("weight", "shape", "asked", "stored as", "bits", "groups", "bytes", "SSE")
    columns = (*map(Column, heads), Column("SNR", "dB"), Column("not compressed"))
    rows = (_row(weight, asked, notes, by_name.get(weight.name)) for weight in census.weights)
    return Table("weights", columns, tuple(rows), "weights")


def _row(
    weight: Weight, asked: Compression | None, notes: Sequence[str], error: Distortion | None
) -> tuple[Cell, ...]:
    stored = " of ".join(s.op.removeprefix("constexpr_") for s in reversed(weight.stages))
    if error and not (weight.stages or error.sse):
        error = None  # Uncompressed, and the same as in the other package.
    return (
        weight.name,
        "x".join(map(str, weight.shape)),
        _wanted(weight, asked),
        (stored or "const") + (f", {weight.sparsity:.1%} zeros" if weight.sparsity else ""),
        weight.nbits,
        weight.groups * weight.blocks,
        weight.compressed_bytes,
        error.sse if error else None,
        error.snr if error else None,
        _declined(weight, asked, notes),
    )


def _wanted(weight: Weight, asked: Compression | None) -> str:
    if asked is None:
        return ""
    settings = asked.for_weight(weight.name, weight.op_types)
    if isinstance(settings, Uncompressed):
        return "fp16"
    return _asked_for(steps_for(weight, settings)) or "fp16 (small)"


def _declined(weight: Weight, asked: Compression | None, notes: Sequence[str]) -> str:
    if asked is None or weight.stages:
        return ""
    settings = asked.for_weight(weight.name, weight.op_types)
    if isinstance(settings, Uncompressed) or not (steps := steps_for(weight, settings)):
        return ""
    return _because(weight, steps, notes)[0] or "coremltools gave no reason"


def _asked_for(steps: Sequence[Step]) -> str:
    """Steps in words: `pruned (target_sparsity 0.5), then quantized (int8, per_channel)`."""
    return ", then ".join(map(_words, steps))


def _undone(weight: Weight, steps: Sequence[Step], notes: Sequence[str]) -> Iterator[Finding]:
    """The first step that was not done, or what was done without being asked for."""
    left, where = list(weight.stages), Where(weight=weight.name)
    was = f"{weight.name} {list(weight.shape)} was to be {_asked_for(steps)}"
    for step in steps:
        stage = next((s for s in left if _does(s, step, steps)), None)
        if stage is None:
            full, brief = _because(weight, steps, notes)
            reason = f"{was} but is stored as {_stored(weight)}" + (f" ({full})" if full else "")
            kind = f"are not {_target(step)}" + (f" ({brief})" if brief else "")
            yield Finding("failed", reason, where, _REMEDY, kind)
            return
        if (difference := _difference(weight, stage, step, steps)) is not None:
            reason, kind = difference
            yield Finding("failed", f"{was}{reason}", where, kind=kind)
            return
        left.remove(stage)
    if any(isinstance(s, Palettize) and s.enable_per_channel_scale for s in steps):
        scales = [s for s in left if s.is_scale and not s.is_quantization]
        if not scales:
            kind = "have tables that are not scaled by channel"
            yield Finding(
                "failed", f"{was} but its tables are not scaled by channel", where, kind=kind
            )
        left = [s for s in left if s not in scales]
    if left:
        kind = "are compressed further than asked for"
        yield Finding("failed", f"{was} but is stored as {_stored(weight)}", where, kind=kind)


def _does(stage: Stage, step: Step, steps: Sequence[Step]) -> bool:
    if isinstance(step, Prune):
        return stage.op == SPARSE
    if isinstance(step, Palettize):
        return stage.is_palette and not stage.of_table
    # A palette's integers are those of its tables, whichever of the two methods came first.
    palette = any(isinstance(other, Palettize) for other in steps)
    return stage.is_quantization and stage.of_table == palette


def _difference(
    weight: Weight, stage: Stage, step: Step, steps: Sequence[Step]
) -> tuple[str, str] | None:
    if isinstance(step, Prune):
        least = _least_sparsity(weight, step)
        if weight.sparsity < least:
            reason = f" but {weight.sparsity:.4f} of it are left out as zeros, not {least:.4f}"
            return reason, "have fewer zeros than asked for"
        return None
    unique = isinstance(step, Palettize) and step.mode == "unique"
    if not unique and stage.nbits != step.nbits:
        return f" but has {stage.nbits} bits", f"have {stage.nbits} bits instead of {step.nbits}"
    if isinstance(step, Palettize) and stage.vector != step.cluster_dim:
        reason = f" but its tables hold vectors of {stage.vector}, not of {step.cluster_dim}"
        return reason, f"have vectors of {stage.vector} instead of {step.cluster_dim}"
    wanted = _tables(weight, step, steps)
    if stage.count not in wanted:
        numbers = " or ".join(map(str, sorted(wanted)))
        reason = f", which takes {numbers} tables or scales, but has {stage.count}"
        return reason, "have another number of tables or scales than asked for"
    return None


def _tables(weight: Weight, step: Palettize | Linear, steps: Sequence[Step]) -> set[int]:
    axes = _axes(weight, joint=len(steps) > 1)
    if isinstance(step, Linear):
        return {_scales(step, pair) for pair in axes}
    outputs = {pair[0] for pair in axes}
    grouped = step.granularity == "per_grouped_channel"
    tables = {rows // step.group_size for rows in outputs} if grouped else {1}
    if step.enable_per_channel_scale:
        # Scales lie along all other axes, and every one has a table scaled by it.
        return {n * weight.elements // rows for rows in outputs for n in tables}
    quantized = steps[0]
    if isinstance(quantized, Linear) and quantized.granularity != "per_tensor":
        return {_scales(quantized, pair) for pair in axes}
    return tables


def _axes(weight: Weight, *, joint: bool) -> set[tuple[int, ...]]:
    """Sizes of the output and the input channels, as the operations that take a weight have them.

    Source: `select_input_output_channel_axis` in optimize/_utils.py of coremltools 9.0, which takes
    the two for one another where compression is joint.
    """
    first, last = weight.shape[:2], weight.shape[-2:]
    axes: set[tuple[int, ...]] = set()
    for op in weight.op_types or ("",):
        if op == "matmul":
            axes |= {first, first[::-1], last, last[::-1]}
        else:
            axes.add(first[::-1] if op == "conv_transpose" else first)
    return axes | {pair[::-1] for pair in axes} if joint else axes


def _scales(step: Linear, axes: tuple[int, ...]) -> int:
    if step.granularity == "per_tensor":
        return 1
    if step.granularity == "per_channel":
        return axes[0]
    return axes[0] * (math.prod(axes[1:2]) // step.block_size)


def _least_sparsity(weight: Weight, step: Prune) -> float:
    if step.target_sparsity is not None:
        return math.floor(weight.elements * step.target_sparsity) / weight.elements
    if step.n_m_ratio is not None:
        n, m = step.n_m_ratio
        channels = weight.shape[1] if len(weight.shape) > 1 else 1
        # The last group is filled up with zeros, which are the first to be chosen.
        zeros = channels // m * n + max(0, n - m + channels % m) * (channels % m > 0)
        return zeros / channels
    return 0.5  # From which share on coremltools leaves zeros out, with a threshold.


def _because(weight: Weight, steps: Sequence[Step], notes: Sequence[str]) -> tuple[str, str]:
    """Why the converter left a weight as it is, in full and in few words; empty if unknown."""
    rows = weight.shape[0]
    for step in steps:
        grouped = isinstance(step, Palettize) and step.granularity == "per_grouped_channel"
        if isinstance(step, Palettize) and grouped and rows % step.group_size:
            size = step.group_size
            full = f"{rows} output channels are not divisible by group_size {size}"
            return full, f"not divisible by {size}"
    if own := next((note for note in notes if weight.name in note), ""):
        text = own.removeprefix(f"{weight.name}: ").rstrip(".")
        return text, "" if weight.name in text else text
    return "", ""


def _target(step: Step) -> str:
    if isinstance(step, Palettize):
        return "palettized" if step.mode == "unique" else f"{step.nbits}-bit"
    return step.dtype if isinstance(step, Linear) else "pruned"


def _stored(weight: Weight) -> str:
    return " of ".join(stage.op for stage in reversed(weight.stages)) or "const"


def _words(step: Step) -> str:
    if isinstance(step, Palettize):
        bits = "" if step.mode == "unique" else f"{step.nbits} bits, "
        return f"palettized ({step.mode}, {bits}{step.granularity})"
    if isinstance(step, Linear):
        return f"quantized ({step.dtype}, {step.granularity})"
    ways = {key: getattr(step, key) for key in ("target_sparsity", "n_m_ratio", "threshold")}
    key, value = next((k, v) for k, v in ways.items() if v is not None)
    return f"pruned ({key} {':'.join(map(str, value)) if isinstance(value, tuple) else value})"


_COMPARED = ("build", "uncompressed", "reference")
"""What weights are compared with to be judged: the program before compression."""
_ROW = 4.0
"""What a row, an output channel, may cost of what its scheme needs. A row of a k-means table that
we did not make is taken to need at least 3 times the mean of the rows that share it. On weights of
SmolLM2-135M coremltools' k-means is at 2.63 at most; a table of zeros costs hundreds."""
_STEPS = 2.0
"""Steps of fp16 that a value which is not compressed may differ by, for converters round constants
that they fold in various ways."""


def _error_figures(
    measurement: CompressionMeasurement, policy: CompressionPolicy
) -> Iterator[Figure]:
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


def _ratio(name: str, value: float, label: str, weight: str, limits: Limits) -> Figure:
    """A ratio with its limit where that decides: below it, the size is what a row should show."""
    limit, good = limits[name]
    return Figure(name, round(value, 4), "x what its scheme needs", label, note=weight, good=good,
                  limit=limit if value > limit else None)  # fmt: skip


def _errors(
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
        for name in measurement.changed:
            reason = f"The constant {name} is another number than in the uncompressed program"
            yield _of(name, reason, "are other numbers than in the uncompressed program")
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
        what = "of the uncompressed program {} not in the package"
        reason = f"{name} {what.format('is')}"
        yield _of(name, reason, what.format("are"), figure="weights_missing")
    for name in measurement.extra:
        reason = f"{name} is not in the uncompressed program, so its error is unknown"
        kind = "are not in the uncompressed program, so their errors are unknown"
        yield _of(name, reason, kind, "warned")


def _of(
    weight: str, reason: str, kind: str, severity: Severity = "failed", figure: str = ""
) -> Finding:
    return Finding(severity, reason, Where(weight=weight), kind=kind, figure=figure)


def _lost(d: Distortion, policy: CompressionPolicy) -> Iterator[Finding]:
    total, row, rows = d.error or 0.0, d.row_error or 0.0, _rows(d)
    if d.scheme == FP16:
        if row > _STEPS**2:
            yield _of(
                d.name,
                f"{d.name} is not compressed, but {rows} differ from the uncompressed weight by up "
                f"to {_times(math.sqrt(row))} steps of fp16",
                "are not compressed, but differ from the uncompressed weights",
            )
    elif row > _ROW:
        yield _of(
            d.name,
            f"compression: {d.name} {rows} cost {_times(row)} times what {d.scheme} needs "
            f"(at most {_ROW:g})",
            f"have rows that cost over {_ROW:g} times what their compression needs",
            figure="max_weight_row_error",
        )
    elif total > (limit := policy.max_weight_error):
        yield _of(
            d.name,
            f"compression: {d.name} costs {_times(total)} times what {d.scheme} needs "
            f"(max-weight-error = {limit:g})",
            f"cost over {limit:g} times what their compression needs",
            figure="max_weight_error",
        )


def _rows(d: Distortion) -> str:
    first, last = d.rows
    return f"row {first}" if first == last else f"rows {first} to {last}"


def _times(ratio: float) -> str:
    return f"{ratio:.3g}" if ratio < 100 else f"{ratio:,.0f}"


def _not_judged(
    measurement: CompressionMeasurement, asked: Compression | None
) -> Iterator[Finding]:
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
            full = f"The error of {d.name} was not judged: {reason}"
            yield _of(d.name, full, f"have errors that were not judged: {reason}", "note")
