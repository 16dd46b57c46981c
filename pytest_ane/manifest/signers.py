"""Public keys that policies name: they must be there before anything is judged by them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from pytest_ane.manifest.base import KeyPath
from pytest_ane.manifest.evidence import EvidencePolicy, under
from pytest_ane.manifest.layers import Layers
from pytest_ane.manifest.policy import GATES, Policy
from pytest_ane.manifest.problems import Problem, at_value


def signer_problems(policy: Policy, layers: Layers, folder: Path) -> Iterator[Problem]:
    """Signers that are no files; `folder` is the manifest's."""
    tables: dict[KeyPath, EvidencePolicy | None] = {("policy", "evidence"): policy.evidence}
    tables |= {("policy", gate, "evidence"): policy.of(gate).evidence for gate in GATES}
    for path, evidence in tables.items():
        signers = (evidence.signers if evidence else None) or ()
        for index, (named, file) in enumerate(zip(signers, under(folder, signers), strict=True)):
            if not file.is_file():
                says = f"{file} is no file; put the signer's public key (PEM) there"
                yield at_value(layers.origin((*path, "signers", index)), str(named), says)
