"""The compression gate's opinion: was what was asked for done, and is the package small enough?"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator

from pytest_ane.build.census import Census, Weight
from pytest_ane.manifest import Compression, CompressionPolicy, Linear, Palettize, Uncompressed
from pytest_ane.verdict import Status, Verdict

_STORAGE = {
    Palettize: ("constexpr_lut_to_dense",),
    Linear: ("constexpr_blockwise_shift_scale", "constexpr_affine_dequantize"),
}


def judge(
    census: Census,
    *,
    size: int,
    asked: Compression | None,
    policy: CompressionPolicy,
    subject: str,
    notes: tuple[str, ...] = (),
) -> Verdict:
    """Hold every weight against what was asked for it, and `size` in bytes against the budget.

    `asked` None, for a package of unknown making, holds only the budget.
    """
    reasons = [*_undone(census, asked, notes), *_budget(census, size, policy)]
    status: Status = "failed" if reasons else "passed"
    if not census.weights:
        reasons.append("The program has no weights, so there was nothing to check.")
        status = "unproven" if status == "passed" else "failed"
    compressed = [w for w in census.weights if w.storage != "const"]
    ratio = census.dense_bytes / size if size else 0.0
    return Verdict(
        gate="compression",
        subject=subject,
        status=status,
        summary=f"{size / 1e6:.2f} MB, {ratio:.2f}x smaller than fp16 · "
        f"{len(compressed)} weights {_kinds(compressed)}",
        reasons=tuple(reasons),
        facts={
            "size_bytes": size,
            "ratio": round(ratio, 4),
            "weights": len(census.weights),
            "weights_compressed": len(compressed),
        },
        details=tuple(_line(weight) for weight in census.weights),
    )


def _undone(census: Census, asked: Compression | None, notes: tuple[str, ...]) -> Iterator[str]:
    if asked is None:
        return
    for weight in census.weights:
        method = asked.for_weight(weight.name)
        if isinstance(method, Uncompressed):
            if weight.storage != "const":
                yield f"{weight.name} was to stay fp16 but is stored as {weight.storage}."
            continue
        if weight.elements <= method.weight_threshold:
            continue
        if weight.storage not in _STORAGE[type(method)]:
            yield (
                f"{weight.name} {list(weight.shape)} was to be {_asked(method)} but is stored as "
                f"{weight.storage}{_because(weight, method, notes)}; choose a setting that fits "
                "its shape, or name it in compression.keep."
            )
        elif (nbits := _nbits(method)) is not None and weight.nbits != nbits:
            yield f"{weight.name} was to be {_asked(method)} but has {weight.nbits} bits."
        elif (tables := weight.groups * weight.blocks) not in (wanted := _tables(weight, method)):
            yield (
                f"{weight.name} {list(weight.shape)} was to be {_asked(method)}, which takes "
                f"{' or '.join(map(str, sorted(wanted)))} tables or scales, but has {tables}."
            )


def _tables(weight: Weight, method: Palettize | Linear) -> set[int]:
    """Tables or scales that a granularity takes; output channels lie on either of two axes."""
    outputs = set(weight.shape[:2])
    if method.granularity == "per_tensor":
        return {1}
    if isinstance(method, Palettize):
        return {rows // method.group_size for rows in outputs}
    if method.granularity == "per_channel":
        return outputs
    rows, columns = weight.shape[0], math.prod(weight.shape[1:2])
    return {rows * (columns // method.block_size), columns * (rows // method.block_size)}


def _because(weight: Weight, method: Palettize | Linear, notes: tuple[str, ...]) -> str:
    """Why the converter declined: its own remark, or the shape that does not divide."""
    if isinstance(method, Palettize) and method.granularity == "per_grouped_channel":
        rows, group = weight.shape[0], method.group_size
        if rows % group:
            return f" ({rows} output channels are not divisible by group_size {group})"
    said = [note for note in notes if weight.name in note]
    return f" ({said[0].rstrip('.')})" if said else ""


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


def _asked(method: Palettize | Linear) -> str:
    if isinstance(method, Palettize):
        return f"palettized ({method.mode}, {method.nbits} bits, {method.granularity})"
    return f"quantized ({method.dtype}, {method.granularity})"


def _nbits(method: Palettize | Linear) -> int | None:
    if isinstance(method, Palettize):
        return None if method.mode == "unique" else method.nbits
    return int(method.dtype.lstrip("uint"))


def _kinds(weights: list[Weight]) -> str:
    kinds = Counter(f"{w.storage.removeprefix('constexpr_')} {w.nbits}-bit" for w in weights)
    return "(" + ", ".join(f"{n} {kind}" for kind, n in kinds.items()) + ")" if kinds else ""


def _line(weight: Weight) -> str:
    return (
        f"{weight.name} {list(weight.shape)}: {weight.storage}, {weight.nbits} bits, "
        f"{weight.groups} groups, {weight.compressed_bytes:,} bytes"
    )
