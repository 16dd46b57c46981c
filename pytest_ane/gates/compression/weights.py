"""The report of single weights: asked, done, declined and why, bytes, error."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from pytest_ane.build.census import Census, Weight
from pytest_ane.build.distortion import Distortion
from pytest_ane.gates.compression.expected import asked_for, declined, expected
from pytest_ane.manifest import Compression, Uncompressed

_HEADS = ("weight", "shape", "asked", "stored as", "bits", "groups", "bytes", "SSE", "SNR dB")
_WORDS = 4
"""Columns of text, aligned left."""


def line(
    weight: Weight, asked: Compression | None, notes: Sequence[str], error: Distortion | None
) -> str:
    """One weight in one line, for the failure section."""
    spared = f", {weight.sparsity:.1%} zeros" if weight.sparsity else ""
    says = (
        f"{weight.name} {list(weight.shape)}: {weight.storage}, {weight.nbits} bits, "
        f"{weight.groups} groups{spared}, {weight.compressed_bytes:,} bytes"
    )
    if error is not None and weight.stages:
        says += f", SSE {error.sse:.4g}, SNR {error.snr:.1f} dB"
    if because := _why_not(weight, asked, notes):
        says += f"; declined: {because}"
    return says


def table(
    census: Census,
    asked: Compression | None,
    notes: Sequence[str] = (),
    distortions: Sequence[Distortion] = (),
) -> Iterator[str]:
    """All weights in aligned columns, then why weights were declined.

    `asked` None leaves that column out, no `distortions` those of the error.
    """
    errors = {d.name: d for d in distortions}
    rows = [_HEADS, *(_row(w, asked, notes, errors.get(w.name)) for w in census.weights)]
    shown = [
        i
        for i, head in enumerate(_HEADS)
        if not (head == "asked" and asked is None)
        and not (head in ("SSE", "SNR dB") and not distortions)
    ]
    widths = [max(len(row[i]) for row in rows) for i in range(len(_HEADS))]
    for row in rows:
        cells = (f"{row[i]:{'<' if i < _WORDS else '>'}{widths[i]}}" for i in shown)
        yield "  ".join(cells).rstrip()
    for weight in census.weights:
        if because := _why_not(weight, asked, notes):
            yield f"{weight.name} declined: {because}"


def _row(
    weight: Weight, asked: Compression | None, notes: Sequence[str], error: Distortion | None
) -> tuple[str, ...]:
    stored = " of ".join(s.op.removeprefix("constexpr_") for s in reversed(weight.stages))
    return (
        weight.name,
        "x".join(map(str, weight.shape)),
        _wanted(weight, asked),
        (stored or "const") + (f", {weight.sparsity:.1%} zeros" if weight.sparsity else ""),
        str(weight.nbits),
        str(weight.groups * weight.blocks),
        f"{weight.compressed_bytes:,}",
        f"{error.sse:.4g}" if error else "-",
        f"{error.snr:.1f}" if error else "-",
    )


def _wanted(weight: Weight, asked: Compression | None) -> str:
    """What was asked for a weight, in words; nothing where nobody knows."""
    if asked is None:
        return ""
    settings = asked.for_weight(weight.name, weight.op_types)
    if isinstance(settings, Uncompressed):
        return "fp16"
    return asked_for(expected(weight, settings)) or "fp16 (small)"


def _why_not(weight: Weight, asked: Compression | None, notes: Sequence[str]) -> str:
    """Why a weight that was to be compressed is not."""
    if asked is None or weight.stages:
        return ""
    settings = asked.for_weight(weight.name, weight.op_types)
    steps = () if isinstance(settings, Uncompressed) else expected(weight, settings)
    return (declined(weight, steps, notes) or "without a word") if steps else ""
