"""What a measurement is of, and what it was asked: the same on every machine, and no more.

Who records and who verifies calls these two, so that both speak of the same things.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from pytest_ane.core.digests import file_digest, key_digest, tree_files
from pytest_ane.manifest import Gate, Model, Shard
from pytest_ane.probes.seeded import GENERATOR

ELSEWHERE = ("versions",)
"""What a model's identity says of the machine it is read on, not of the model."""


def files_of(artifacts: Mapping[str, Path]) -> dict[str, str]:
    """SHA-256 of all files of artifacts as in-toto names them: `L01/Manifest.json`.

    Args:
        artifacts: packages by shard id: the one of a shard, or all of a model's for behaviour.
    """
    return {
        f"{shard}/{name}": digest
        for shard, path in artifacts.items()
        for name, digest in tree_files(path).items()
    }


def question(
    gate: Gate, subject: Shard | Model, model: Model, identity: Callable[[], Mapping[str, Any]]
) -> dict[str, Any]:
    """What decides a measurement beside the artifact and the machine, as JSON data.

    Of a plan and of compression nothing does. Of fidelity: probes, the reference, the largest T,
    and golden prompts where states are captured from them; or golden tensors, which hold their
    probes, and the largest T. Of behaviour: golden prompts.

    Args:
        gate: whose question it is.
        subject: a shard, or for behaviour the model.
        model: the shard's model, or the model itself.
        identity: what the model's weights and code depend on (`OpenModel.identity`); called where
            its float32 modules are the reference. Versions of packages and folders are left out of
            it, for they differ between a Mac and the machine that verifies.
    """
    prompts = [prompt.model_dump(mode="json", exclude_none=True) for prompt in model.prompts]
    if isinstance(subject, Model):
        return {"prompts": prompts, "reference": "float32", "source": _source(identity)}
    if gate != "fidelity":
        return {}
    if subject.golden is not None:
        # Its probes are in the file.
        there = subject.golden.is_file()
        tensors = {"golden": file_digest(subject.golden) if there else "missing"}
        return {"reference": tensors, "max_tokens": subject.max_tokens}
    asked: dict[str, Any] = {
        "probes": subject.probes.model_dump(mode="json") | {"generator": GENERATOR},
        "reference": subject.reference,
        "max_tokens": subject.max_tokens,
    }
    if isinstance(subject.reference, Path):
        asked["reference"] = key_digest(tree_files(subject.reference))
    elif subject.reference == "float32":
        asked["source"] = _source(identity)
    if subject.probes.of_prompts:
        asked["prompts"] = prompts
    return asked


def _source(identity: Callable[[], Mapping[str, Any]]) -> str:
    parts = {key: part for key, part in identity().items() if key not in ELSEWHERE}
    if "depends" in parts:  # What a builder reads, by absolute paths: they differ as well.
        parts["depends"] = sorted(parts["depends"].values())
    return key_digest(parts)
