"""Verdict of the compression gate: what was asked for every weight, and the size budget."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace

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
    counted,
    limited,
    loosened,
    some,
)
from pytest_ane.make.distortion import FP16, Distortion, in_words, steps_for
from pytest_ane.manifest import Compression, Linear, Palettize, Prune, Step, Uncompressed
from pytest_ane.manifest.policy import CompressionPolicy
from pytest_ane.mlprogram.text import size_ratio
from pytest_ane.mlprogram.weights import SPARSE, Census, Stage, Weight

_COMPARED = ("build", "uncompressed", "family", "reference")
"""What weights are compared with to be judged: the program before compression."""
_ROW = 4.0
"""What a row, an output channel, may cost of what its scheme needs. A row of a k-means table that
we did not make is taken to need at least 3 times the mean of the rows that share it. On weights of
SmolLM2-135M coremltools' k-means is at 2.63 at most; a table of zeros costs hundreds."""
_OUTLIERS = 25.0
"""Signal-to-noise ratio in dB below which outliers set an int8 weight's one scale: a normal
distribution's largest of a million values, at 5 sigma, leaves 39 dB."""
_NAMED = 3
_GAIN, _UNSETTLED = 0.01, 0.5
"""How far a compressed weight's size may be from what its scheme leaves, as a share; and more, by
this of the share of its energy that is lost: coremltools' k-means ends before its entries are the
means of what they stand for. Its tables of 2 bits lose 12 % and are up to 2.3 % too large."""
_STEPS = 2.0
"""Steps of fp16 that a value which is not compressed may differ by, for converters round constants
that they fold in various ways."""
_UNIQUE, _EXACT, _CROWDED = "lossless palettization", 66.0, 4
"""A scheme; dB that fp16 leaves; values for each entry or end of a scale, too many to hold."""


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
    findings = [
        *_weights(census, asked, notes),
        *_errors(measurement, policy, asked),
        *_budget(measurement, policy),
        *_values(measurement, policy),
    ]
    # A shard may rightly have none, such as an encoder's pooling; then its size is what it asks.
    sized = isinstance(asked, Uncompressed) and policy.max_bytes is not None
    # Nobody said that a package of the user's has any: a mask builder, a head that takes top k.
    unclaimed = asked is None and measurement.against not in ("build", "changed")
    if not census.weights and not (sized or unclaimed):
        reason = "The program has no weights, so there was nothing to check"
        remedy = "if it needs none, set its compression to 'none' and its max-bytes"
        findings.append(Finding("unproven", reason, remedy=remedy))
    tables = [weights_table(census, asked, notes, measurement.distortions)]
    if measurement.palettes:
        tables.append(palettes_table(measurement.palettes))
    made = (*figures(measurement, limits(policy)), *loosened(policy))
    if unclaimed and not census.weights:
        made = tuple(replace(f, note="nothing claimed") if f.name == "weights" else f for f in made)
    return Verdict("compression", subject, made, tuple(findings), tuple(tables))


def limits(policy: CompressionPolicy) -> Limits:
    """What a policy asks of figures."""
    return {
        **bounds("below", size_bytes=policy.max_bytes, max_weight_error=policy.max_weight_error,
                 max_weight_row_error=_ROW),
        **bounds("above", ratio=policy.min_ratio),
    }  # fmt: skip


def figures(measurement: CompressionMeasurement, asked: Limits) -> tuple[Figure, ...]:
    """Bytes, the ratio to fp16, weights, and their errors, beside what is asked of them."""
    made = limited(_measured(measurement), asked)
    # An error within its limit decides nothing: the size is what a row should show.
    return tuple(
        replace(f, limit=None) if f.passes and f.name.startswith("max_weight") else f for f in made
    )


def _measured(measurement: CompressionMeasurement) -> Iterator[Figure]:
    weights, size = measurement.census.weights, measurement.size
    compressed = [weight for weight in weights if weight.stages]
    kinds = Counter(f"{w.storage.removeprefix('constexpr_')} {w.nbits}-bit" for w in compressed)
    own, some = size - measurement.others, bool(weights)
    ratio = round(measurement.census.dense_bytes / own, 4) if own else 0.0
    yield Figure("size_bytes", size, "bytes", shown=True)
    yield Figure("ratio", ratio, RATIO, shown=some)
    yield Figure("weights", len(weights), "weights", shown=not some)
    yield Figure("weights_compressed", len(compressed), "weights compressed", of=len(weights),
                 note=", ".join(f"{n} {kind}" for kind, n in kinds.items()),
                 shown=some)  # fmt: skip
    lossy = [d for d in measurement.distortions if d.snr < math.inf]
    if worst := min(lossy, key=lambda d: d.snr, default=None):
        yield Figure("min_snr_db", round(worst.snr, 3), "dB", "lowest SNR", note=worst.name,
                     shown=True)  # fmt: skip
        yield Figure("min_snr_weight", worst.name)
    if judged := [d for d in _judged(measurement) if d.scheme != FP16]:
        unit = "x what its scheme needs"
        worst = max(judged, key=lambda d: d.error or 0)
        yield Figure("max_weight_error", round(worst.error or 0, 4), unit, "error of a weight",
                     note=worst.name)  # fmt: skip
        worst = max(judged, key=lambda d: d.row_error or 0)
        yield Figure("max_weight_row_error", round(worst.row_error or 0, 4), unit,
                     "error of a row", note=f"{worst.name} {_rows(worst)}")  # fmt: skip
    if measurement.against in _COMPARED:
        yield Figure("weights_missing", len(measurement.missing), "weights missing")


def _steps(weight: Weight, asked: Compression) -> Sequence[Step] | None:
    """What was asked of a weight; None for one that was to stay fp16."""
    settings = asked.for_weight(weight.name, weight.op_types)
    return None if isinstance(settings, Uncompressed) else steps_for(weight, settings)


def _of(weight: str, reason: str, kind: str, severity: Severity = "failed", **more: str) -> Finding:
    return Finding(severity, reason, Where(weight=weight), kind=kind, **more)


def _weights(census: Census, asked: Compression | None, notes: Sequence[str]) -> Iterator[Finding]:
    for weight in census.weights if asked is not None else ():
        steps = _steps(weight, asked) if asked is not None else None
        if steps is None and weight.stages:
            reason = f"{weight.name} was to stay fp16 but is stored as {weight.storage}"
            yield _of(weight.name, reason, "are compressed though they were to stay fp16")
        elif steps and (fault := _fault(weight, steps, notes)):
            what, kind, remedy = fault
            was = f"{weight.name} {list(weight.shape)} was to have {in_words(steps)}"
            yield _of(weight.name, f"{was} but {what}", kind, remedy=remedy)


def _values(measurement: CompressionMeasurement, policy: CompressionPolicy) -> Iterator[Finding]:
    """Errors that are unknown, and weights with one scale that are large, or lose much by it.

    An outlier sets that scale, and all others get fewer levels.
    """
    remedy = "use per_channel, or palettes per_grouped_channel"
    for d in measurement.distortions:
        if not math.isfinite(d.sse):
            why = "holds NaN or infinity, compressed or before, so its error is unknown"
            yield _of(d.name, f"{d.name} {why}", "hold NaN or infinity")
    over = policy.int8_per_tensor_over
    lost = {d.name: d.snr for d in measurement.distortions}
    for weight in measurement.census.weights:
        if not any(stage.is_quantization and stage.count == 1 for stage in weight.stages):
            continue
        snr = lost.get(weight.name, math.inf)
        if over is None and weight.nbits == 8 and snr < _OUTLIERS:
            what = f"one scale for {counted(weight.shape[0], 'row')}, which its outliers set"
            reason = f"{weight.name} has {what}: its signal-to-noise ratio is {snr:.1f} dB"
            kind = "have one scale for all rows, which outliers set"
            yield _of(weight.name, reason, kind, "warned", remedy=remedy)
        if over is not None and weight.elements > over:
            most = f"over {over:,} (policy.compression.int8-per-tensor-over)"
            reason = f"{weight.name} {list(weight.shape)} has {weight.elements:,} elements, {most}"
            reason += ", and one scale for all of them, which its outliers set"
            kind = f"have one scale for more than {over:,} elements"
            yield _of(weight.name, reason, kind, remedy=remedy)


def _budget(measurement: CompressionMeasurement, policy: CompressionPolicy) -> Iterator[Finding]:
    size, dense = measurement.size, measurement.census.dense_bytes
    own = size - measurement.others
    if policy.max_bytes is not None and size > policy.max_bytes:
        reason = f"The package has {size:,} bytes, above max-bytes = {policy.max_bytes:,}"
        yield Finding("failed", reason, figure="size_bytes")
    if policy.min_ratio is not None and dense < policy.min_ratio * own:
        small = size_ratio(dense / own, 3)
        reason = f"The package is {small}, below min-ratio = {policy.min_ratio:g}"
        yield Finding("failed", reason, figure="ratio")


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
    steps = None if asked is None else _steps(weight, asked)
    wanted = declined = ""
    if asked is not None:
        wanted = "fp16" if steps is None else in_words(steps) or "fp16 (small)"
    if steps and not weight.stages:
        declined = _because(weight, steps, notes)[0] or "coremltools gave no reason"
    zeros = f", {weight.sparsity:.1%} zeros" if weight.sparsity else ""
    stored = _stored(weight).replace("constexpr_", "") + zeros
    size = (weight.nbits, weight.groups * weight.blocks, weight.compressed_bytes)
    # Uncompressed, and the same as in the other package, it has no error.
    known = error is not None and (weight.stages or error.sse)
    errors = (error.sse, error.snr) if error is not None and known else (None, None)
    shape = "x".join(map(str, weight.shape))
    return (weight.name, shape, wanted, stored, *size, *errors, declined)


def _fault(
    weight: Weight, steps: Sequence[Step], notes: Sequence[str]
) -> tuple[str, str, str] | None:
    """The first step that was not done, or what was done besides: what, its kind, a remedy."""
    left, stored = list(weight.stages), f"is stored as {_stored(weight)}"
    for step in steps:
        stage = next((s for s in left if _does(s, step, steps)), None)
        if stage is None:
            full, brief = (f" ({why})" if why else "" for why in _because(weight, steps, notes))
            remedy = "choose a setting that fits its shape, or name it in compression.keep"
            return f"{stored}{full}", f"are not {_target(step)}{brief}", remedy
        if (difference := _difference(weight, stage, step, steps)) is not None:
            return (*difference, "")
        left.remove(stage)
    if any(isinstance(s, Palettize) and s.enable_per_channel_scale for s in steps):
        scales = [s for s in left if s.is_scale and not s.is_quantization]
        if not scales:
            how = "are not scaled by channel"
            return f"its tables {how}", f"have tables that {how}", ""
        left = [s for s in left if s not in scales]
    return (stored, "are compressed further than asked for", "") if left else None


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
        if weight.sparsity >= (least := _least_sparsity(weight, step)):
            return None
        reason = f"{weight.sparsity:.4f} of it are left out as zeros, not {least:.4f}"
        return reason, "have fewer zeros than asked for"
    unique = isinstance(step, Palettize) and step.mode == "unique"
    if not unique and stage.nbits != step.nbits:
        return f"has {stage.nbits} bits", f"have {stage.nbits} bits instead of {step.nbits}"
    if isinstance(step, Palettize) and stage.vector != step.cluster_dim:
        reason = f"its tables hold vectors of {stage.vector}, not of {step.cluster_dim}"
        return reason, f"have vectors of {stage.vector} instead of {step.cluster_dim}"
    wanted = _tables(weight, step, steps)
    if stage.count not in wanted:
        numbers = " or ".join(map(str, sorted(wanted)))
        reason = f"has {stage.count} tables or scales, not {numbers}"
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
    for step in steps:
        grouped = isinstance(step, Palettize) and step.granularity == "per_grouped_channel"
        if isinstance(step, Palettize) and grouped and weight.shape[0] % (size := step.group_size):
            full = f"{weight.shape[0]} output channels are not divisible by group_size {size}"
            return full, f"not divisible by {size}"
    own = next((note for note in notes if weight.name in note), "")
    text = own.removeprefix(f"{weight.name}: ").rstrip(".")
    return text, "" if weight.name in text else text


def _target(step: Step) -> str:
    if isinstance(step, Palettize):
        return "palettized" if step.mode == "unique" else f"{step.nbits}-bit"
    return step.dtype if isinstance(step, Linear) else "pruned"


def _stored(weight: Weight) -> str:
    return " of ".join(stage.op for stage in reversed(weight.stages)) or "const"


def _judged(measurement: CompressionMeasurement) -> list[Distortion]:
    compared = measurement.against in _COMPARED
    return [d for d in measurement.distortions if compared and d.reached is not None]


def _errors(
    measurement: CompressionMeasurement, policy: CompressionPolicy, asked: Compression | None
) -> Iterator[Finding]:
    """Weights that are missing, differ, or lose more than their schemes do; and what is unknown."""
    against, before = measurement.against, "the uncompressed program"
    compressed = {w.name for w in measurement.census.weights if w.stages}
    if against == "changed":
        reason = "The package has other bytes than those whose weights its build measured"
        remedy = "run 'pytest-ane cache prune', and it is built again"
        yield Finding("failed", reason, remedy=remedy)
    if against in ("nothing", "compressed") and compressed:
        count = counted(len(compressed), "compressed weight")
        also = against == "compressed"
        why = "reference is compressed, too" if also else "program before compression is not known"
        remedy = 'add uncompressed = "x-fp16.mlpackage" to the shard\'s table'
        reason = f"{count} could not be compared, for the {why}"
        yield Finding("unproven" if also else "note", reason, remedy=remedy)
    if against not in _COMPARED:
        return
    missing = measurement.missing
    if against == "family":
        if lacking := (*missing, *(name for name in measurement.extra if name in compressed)):
            count, named = counted(len(lacking), "weight"), some(lacking, _NAMED)
            pair = "the package, or of what its family converts, have no counterpart in the other"
            reason = f"{count} of {pair} ({named}), so nobody knows whether they are right"
            remedy = 'add uncompressed = "x-fp16.mlpackage", the program that was compressed'
            yield Finding("unproven", reason, remedy=remedy)
    elif missing and not measurement.distortions:
        reason = f"None of the {len(missing)} weights of the uncompressed package is in the package"
        remedy = "name the package's own program before compression as 'uncompressed'"
        yield Finding("failed", f"{reason} by name and shape, so it is another program",
                      remedy=remedy, figure="weights_missing")  # fmt: skip
    else:
        for name in missing:
            rest = f"of {before} {{}} not in the package"
            reason, kind = f"{name} {rest.format('is')}", rest.format("are")
            yield _of(name, reason, kind, figure="weights_missing")
        for name in measurement.extra:
            reason = f"{name} is not in {before}, so its error is unknown"
            yield _of(name, reason, f"are not in {before}, so their errors are unknown", "warned")
    if against in ("uncompressed", "reference") and _lossless(measurement):
        reason = "Compression lost nothing, as if what it is compared with was decompressed from it"
        remedy = "name the program before compression, or claim palettes with mode = 'unique'"
        yield Finding("unproven", reason, remedy=remedy)
    for name in measurement.changed:
        reason = f"The constant {name} is another number than in {before}"
        yield _of(name, reason, f"are other numbers than in {before}")
    for d in sorted(_judged(measurement), key=lambda d: -(d.row_error or 0)):
        yield from _lost(d, policy.max_weight_error if asked else _ROW / 2)
    for d in measurement.distortions:
        if d.reached is None and d.name in compressed and math.isfinite(d.sse):
            why = f"nothing says what {d.scheme} should reach"
            if asked is None:
                why = "the manifest does not say how it was to be compressed"
            elif not d.scheme:
                why = "it was not to be compressed"
            reason = f"The error of {d.name} was not judged: {why}"
            yield _of(d.name, reason, f"have errors that were not judged: {why}", "note")


def _lossless(measurement: CompressionMeasurement) -> bool:
    """Whether no weight lost anything, of those with more values than tables or scales can hold."""
    crowded = set()
    for weight in measurement.census.weights:
        stages = [s for s in weight.stages if s.op != SPARSE]
        held = (s.count * (1 << s.nbits if s.is_palette else 2) for s in stages)
        if weight.elements > _CROWDED * max(held, default=weight.elements):
            crowded.add(weight.name)
    lossy = [d.snr for d in measurement.distortions if d.name in crowded and d.scheme != _UNIQUE]
    return bool(lossy) and min(lossy) > _EXACT


def _lost(d: Distortion, most: float) -> Iterator[Finding]:
    total, row, rows, needs = d.error or 0.0, d.row_error or 0.0, _rows(d), f"what {d.scheme} needs"
    if d.scheme == FP16:
        if row > _STEPS**2:
            differ = f"differ from the uncompressed weight by up to {_times(math.sqrt(row))} steps"
            reason = f"{d.name} is not compressed, but {rows} {differ} of fp16"
            kind = "are not compressed, but differ from the uncompressed weights"
            yield _of(d.name, reason, kind)
    elif row > _ROW:
        reason = f"compression: {d.name} {rows} cost {_times(row)} times {needs} (at most {_ROW:g})"
        kind = f"have rows that cost over {_ROW:g} times what their compression needs"
        yield _of(d.name, reason, kind, figure="max_weight_row_error")
    elif d.strays or abs(d.gain - 1) > _GAIN + _UNSETTLED * d.sse / (d.energy or 1.0):
        reason = f"{d.name} is {d.gain:.3g} times what its compression leaves of it"
        kind = "are larger or smaller than their compression leaves them"
        if d.strays:
            count = counted(d.strays, "element")
            reason = f"{d.name} has {count} with another value than the nearest of its table"
            kind = "have elements with another value than the nearest of their tables"
        yield _of(d.name, f"damaged: {reason}", kind)
    elif total > most:
        asked = f"(max-weight-error = {most:g})"
        reason = f"compression: {d.name} costs {_times(total)} times {needs} {asked}"
        kind = f"cost over {most:g} times what their compression needs"
        yield _of(d.name, reason, kind, figure="max_weight_error")


def _rows(d: Distortion) -> str:
    first, last = d.rows
    return f"row {first}" if first == last else f"rows {first} to {last}"


def _times(ratio: float) -> str:
    return f"{ratio:.3g}" if ratio < 100 else f"{ratio:,.0f}"
