"""A verdict in sentences."""

from __future__ import annotations

from pathlib import Path

from pytest_ane.manifest import Manifest
from pytest_ane.verdict import Verdict

_MOST = 8


def failure(verdict: Verdict) -> str:
    """The message of a failed gate: what and where, then every reason, at most eight."""
    lines = [f"{verdict.subject}: {verdict.gate} {verdict.status}"]
    lines += [f"  - {reason}" for reason in verdict.reasons[:_MOST]]
    if (more := len(verdict.reasons) - _MOST) > 0:
        lines.append(f"  - and {more} more")
    return "\n".join(lines)


def header(*, manifest: Manifest, selected: int, backend: str, cache: Path | None) -> str:
    """`ane: smollm2 · 1 of 34 shards · backend cpu · ...`: what decides the verdicts."""
    models = ", ".join(model.name for model in manifest.models)
    parts = [
        models,
        f"{selected} of {len(manifest.shards)} shards",
        f"backend {backend}",
        "placement by forecast, no device evidence",
    ]
    if cache is not None:
        parts.append(f"cache {cache}")
    return "ane: " + " · ".join(parts)
