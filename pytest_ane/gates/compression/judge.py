"""The compression gate's opinion: was what was asked for done, and is the package small enough?"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence

from pytest_ane.build.census import Census, Weight
from pytest_ane.build.distortion import Distortion
from pytest_ane.core.verdict import Status, Verdict
from pytest_ane.gates.compression.expected import expected, undone
from pytest_ane.gates.compression.measure import CompressionMeasurement
from pytest_ane.gates.compression.weights import line
from pytest_ane.manifest import Compression, CompressionPolicy, Uncompressed


def judge(
    found: CompressionMeasurement | Census,
    *,
    asked: Compression | None,
    policy: CompressionPolicy,
    subject: str,
    size: int | None = None,
    notes: tuple[str, ...] = (),
    distortions: Sequence[Distortion] = (),
) -> Verdict:
    """Hold every weight against what was asked for it, and the size against the budget.

    `asked` None, for a package of unknown making, holds only the budget. Gates that were copied
    before there was evidence give a census, with `size` in bytes and the rest beside it.
    """
    if isinstance(found, Census):
        if size is None:
            raise TypeError("a census alone does not tell the package's size")
        found = CompressionMeasurement(found, size, notes, tuple(distortions))
    census, size, notes, distortions = found.census, found.size, found.notes, found.distortions
    coarse = list(_coarse(census, policy))
    warned = coarse if policy.int8_per_tensor_action == "warn" else []
    reasons = [*_undone(census, asked, notes), *_budget(census, size, policy)]
    reasons += [*_not_finite(distortions), *(says for says in coarse if says not in warned)]
    status: Status = "failed" if reasons else "passed"
    if not census.weights:
        reasons.append("The program has no weights, so there was nothing to check.")
        status = "unproven" if status == "passed" else "failed"
    compressed = [w for w in census.weights if w.stages]
    ratio = census.dense_bytes / size if size else 0.0
    worst = _worst(distortions)
    by_name = {d.name: d for d in distortions}
    return Verdict(
        gate="compression",
        subject=subject,
        status=status,
        summary=_warning(len(warned))
        + f"{size / 1e6:.2f} MB, {ratio:.2f}x smaller than fp16 · "
        + f"{len(compressed)} weights {_kinds(compressed)}"
        + (f" · lowest SNR {worst.snr:.1f} dB ({worst.name})" if worst else ""),
        reasons=tuple(reasons),
        facts={
            "size_bytes": size,
            "ratio": round(ratio, 4),
            "weights": len(census.weights),
            "weights_compressed": len(compressed),
            **({"warnings": len(warned)} if warned else {}),
            **({"min_snr_db": round(worst.snr, 3), "min_snr_weight": worst.name} if worst else {}),
        },
        details=(
            *(f"warning: {says}" for says in warned),
            *(line(w, asked, notes, by_name.get(w.name)) for w in census.weights),
        ),
    )


def _undone(census: Census, asked: Compression | None, notes: tuple[str, ...]) -> Iterator[str]:
    if asked is None:
        return
    for weight in census.weights:
        settings = asked.for_weight(weight.name, weight.op_types)
        if isinstance(settings, Uncompressed):
            if weight.stages:
                yield f"{weight.name} was to stay fp16 but is stored as {weight.storage}."
        elif steps := expected(weight, settings):
            yield from undone(weight, steps, notes)


def _coarse(census: Census, policy: CompressionPolicy) -> Iterator[str]:
    """Large weights with one scale; reason: an outlier sets it, and all others get fewer levels."""
    over = policy.int8_per_tensor_over
    for weight in census.weights if over is not None else ():
        scales = [stage.count for stage in weight.stages if stage.is_quantization]
        if over is not None and weight.elements > over and 1 in scales:
            yield (
                f"{weight.name} {list(weight.shape)} has {weight.elements:,} elements, over "
                f"{over:,} (policy.compression.int8-per-tensor-over), and one scale for all of "
                "them, which its outliers set; use per_channel, or palettes per_grouped_channel."
            )


def _not_finite(distortions: Sequence[Distortion]) -> Iterator[str]:
    for distortion in distortions:
        if not math.isfinite(distortion.sse):
            yield (
                f"{distortion.name} holds NaN or infinity, compressed or before; its error cannot "
                "be told."
            )


def _budget(census: Census, size: int, policy: CompressionPolicy) -> Iterator[str]:
    if policy.max_bytes is not None and size > policy.max_bytes:
        yield (
            f"The package has {size:,} bytes, over the budget of {policy.max_bytes:,} "
            "(policy.compression.max-bytes); it would pass at "
            f"max-bytes = {size}."
        )
    if policy.min_ratio is not None and census.dense_bytes < policy.min_ratio * size:
        yield (
            f"The package is {census.dense_bytes / size:.3f}x smaller than fp16, below "
            f"policy.compression.min-ratio = {policy.min_ratio:g}."
        )


def _worst(distortions: Sequence[Distortion]) -> Distortion | None:
    """The weight that lost most, of those that lost something."""
    lossy = [d for d in distortions if d.snr < math.inf]
    return min(lossy, key=lambda d: d.snr, default=None)


def _warning(count: int) -> str:
    weights = "1 large weight" if count == 1 else f"{count} large weights"
    return f"warning: {weights} with one scale · " if count else ""


def _kinds(weights: list[Weight]) -> str:
    kinds = Counter(f"{w.storage.removeprefix('constexpr_')} {w.nbits}-bit" for w in weights)
    return "(" + ", ".join(f"{n} {kind}" for kind, n in kinds.items()) + ")" if kinds else ""
