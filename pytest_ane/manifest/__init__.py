"""The manifest: `shards.toml` as typed, frozen records, and the selection of shards from it."""

from __future__ import annotations

from pytest_ane.manifest.compression import (
    Compression,
    Linear,
    Palettize,
    Prune,
    Settings,
    Step,
    Uncompressed,
)
from pytest_ane.manifest.ids import select
from pytest_ane.manifest.inputs import Input
from pytest_ane.manifest.load import load, package_ids, package_manifest, parse, read_compression
from pytest_ane.manifest.policy import ComputeUnits, EvidencePolicy, Policy
from pytest_ane.manifest.records import GOLDEN, Manifest, Model, Probes, Prompt, Shard, SourceTable
from pytest_ane.manifest.tables import FAMILIES, json_schema

__all__ = [
    "FAMILIES", "GOLDEN", "Compression", "ComputeUnits", "EvidencePolicy", "Input", "Linear",
    "Manifest", "Model", "Palettize", "Policy", "Probes", "Prompt", "Prune", "Settings", "Shard",
    "SourceTable", "Step", "Uncompressed", "json_schema", "load", "package_ids",
    "package_manifest", "parse", "read_compression", "select",
]  # fmt: skip
