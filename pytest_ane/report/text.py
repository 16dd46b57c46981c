"""The header of a run, and sentences shortened for its table."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from pytest_ane.manifest import Shard
from pytest_ane.mlprogram.arithmetic import ARITHMETICS, label

_FOLDERS = re.compile(r"(?<![^\s'\"(])/(?:[^/\s:,;'\"]+/)+")
"""The folders of an absolute path, which begins a word."""


def brief(sentence: str) -> str:
    """A sentence for the table: absolute paths shortened to their last part."""
    return _FOLDERS.sub("", sentence)


def header(
    *,
    asked: str,
    selected: Sequence[Shard],
    of: int,
    backend: str,
    device: str = "",
    recorded: bool = False,
    thresholds: Sequence[str] = (),
    unproven: str = "",
    cache: Path | None = None,
    store: str = "",
    cluster: str = "",
    canaries: Sequence[str] = (),
) -> str:
    """`ane: L01 · shards 1 of 34 · ...`: what was asked, and what decides the verdicts.

    `device` names machine and compute units where the backend runs on a device, whose plan then
    says where operations run; `recorded` says that there are recorded plans.
    """
    made_up = {s.source.synthetic for s in selected if s.source and s.source.synthetic}
    seeds = ", ".join(dict.fromkeys(str(shard.probes.seed) for shard in selected))
    parts = [
        asked,
        f"shards {len(selected)} of {of}",
        f"backend {backend}",
        *([] if device else _arithmetic(selected)),
        *([device, "placement by Core ML's plan"] if device else [_placement(selected, recorded)]),
        f"seed {seeds}",
    ]
    parts += [f"weights {text}" for text in sorted(made_up)]
    parts += [f"canary {words}" for words in canaries]
    parts += thresholds
    if unproven:
        parts.append({"allow": "unproven allowed", "fail": "unproven fails"}[unproven])
    if cache is not None:
        parts.append(f"cache {cache}")
    if store:
        parts.append(f"store {store}")
    if cluster:
        parts.append(f"cluster {cluster}")
    return "ane: " + " · ".join(parts)


def _arithmetic(shards: Sequence[Shard]) -> Sequence[str]:
    """How the executor's runs are computed, unless all are as typed."""
    judged = [word for word in ARITHMETICS if any(word in shard.arithmetic for shard in shards)]
    return [f"arithmetic {', '.join(map(label, judged))}"] if "ane" in judged else []


def _placement(shards: Sequence[Shard], recorded: bool) -> str:
    """What says where operations run, where no device is asked."""
    required = [shard.policy.requires_evidence("placement") for shard in shards]
    if required and all(required):
        return "placement by recorded plans"
    if recorded or any(required):
        return "placement by recorded plans and forecast"
    return "placement by forecast"
