"""Which bytes a measurement is of, and which question it answers: the same on every machine.

Recorder and verifier call the same two functions, so both mean the same things.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from pytest_ane.gates.base import Subject
from pytest_ane.gates.registry import GATES
from pytest_ane.make import Artifact
from pytest_ane.manifest import Model, Shard
from pytest_ane.mlprogram.digests import key_digest

_OF_MACHINE = ("versions",)
"""What a model's identity says of the machine it is read on, not of the model."""


def files_of(artifacts: Mapping[str, Artifact]) -> dict[str, str]:
    """SHA-256 of all files of artifacts as in-toto names them: `L01/Manifest.json`.

    Args:
        artifacts: by shard id: the one of a shard, or all of a model's.
    """
    return {
        f"{shard}/{name}": digest
        for shard, artifact in artifacts.items()
        for name, digest in artifact.files.items()
    }


def question(
    gate: str, subject: Subject, model: Model, identity: Callable[[], Mapping[str, Any]]
) -> dict[str, Any]:
    """What decides a gate's measurement besides artifact and machine, as JSON data.

    Args:
        gate: its name.
        subject: a shard, or for gates of whole models the model.
        model: the shard's model, or the model itself.
        identity: what the model's weights and code depend on; called where its float32 modules are
            the reference. Versions of packages and folders are left out of it, for they differ
            between a Mac and the machine that verifies.
    """
    function = subject.function if isinstance(subject, Shard) else None
    return {
        **({"function": function} if function else {}),
        **GATES[gate].question(subject, model, lambda: source_digest(identity())),
    }


def source_digest(identity: Mapping[str, Any]) -> str:
    """The same on every machine, of what a model's weights and code depend on."""
    parts = {key: part for key, part in identity.items() if key not in _OF_MACHINE}
    if "depends" in parts:  # What a builder reads, by absolute paths: they differ as well.
        parts["depends"] = sorted(parts["depends"].values())
    return key_digest(parts)
