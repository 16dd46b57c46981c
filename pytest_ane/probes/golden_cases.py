"""Cases of a shard that is held against golden tensors."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from pytest_ane.backends import Backend, Runner
from pytest_ane.core.errors import GoldenError
from pytest_ane.families import Layout, Port
from pytest_ane.manifest import Shard
from pytest_ane.probes.cases import Case, Rows
from pytest_ane.probes.golden import Golden
from pytest_ane.probes.hidden import HiddenProbe
from pytest_ane.probes.ports import port_rows


def golden_cases(
    golden: Golden, shard: Shard, layout: Layout | None, backend: Backend, artifact: Path
) -> list[Case]:
    """What golden tensors ask of a shard; `layout` where it has a family.

    Raises:
        GoldenError: the tensors are another shard's, or longer than this one takes.
        ProgramError: the artifact cannot be read.
    """
    if not golden.hidden:
        return _package_cases(golden, backend.load(artifact), artifact)
    if layout is None:
        raise GoldenError(
            f"{golden.path}: holds hidden states of a family's shard, and {shard.qualified} has no "
            "family; record its own inputs and outputs."
        )
    probes = range(len(golden.probes))
    return [_hidden_probe(golden, i, shard, layout).case(layout) for i in probes]


def _hidden_probe(golden: Golden, i: int, shard: Shard, layout: Layout) -> HiddenProbe:
    probe, note = golden.probes[i], golden.notes[i]
    hidden, expected = probe["input"], probe["expected"]
    length, width = hidden.shape
    if width != layout.width:
        raise GoldenError(
            f"{golden.path}: {i}.input has {width} channels, and {shard.qualified} takes "
            f"{layout.width}; is it another shard's?"
        )
    if layout.sees == "call" and length > shard.max_tokens:
        raise GoldenError(
            f"{golden.path}: {i}.input has {length} positions, and {shard.qualified} takes at most "
            f"max-tokens = {shard.max_tokens} at once; raise it or record shorter probes."
        )
    if layout.sees == "state" and length > shard.context:
        raise GoldenError(
            f"{golden.path}: {i}.input has {length} positions, and {shard.qualified} holds at most "
            f"context = {shard.context}; raise it or record shorter probes."
        )
    residual = hidden if note.residual else probe.get("residual")
    chunk = min(note.chunk or shard.max_tokens, shard.max_tokens)
    routed = tuple(map(tuple, note.routed))
    return HiddenProbe(note.kind, note.name, note.start, chunk, hidden, expected, residual, routed)


def _package_cases(golden: Golden, runner: Runner, artifact: Path) -> list[Case]:
    """In the artifact's own inputs and outputs."""
    declared = {feature.name for feature in runner.inputs}
    ports = {port.name: Port(port.name, tuple(port.shape)) for port in golden.outputs}

    def rows(outputs: Mapping[str, Any]) -> Rows:
        return {name: port_rows(array, ports.get(name)) for name, array in outputs.items()}

    found = []
    for i, (probe, note) in enumerate(zip(golden.probes, golden.notes, strict=True)):
        inputs, expected = _starting(probe, "in."), _starting(probe, "out.")
        if inputs.keys() != declared:
            raise GoldenError(
                f"{golden.path}: probe {i} has inputs {_listed(inputs)}, and {artifact} takes "
                f"{_listed(declared)}; are they another package's?"
            )
        floats = [x for x in inputs.values() if np.issubdtype(x.dtype, np.floating)]
        expected = dict(rows(expected))
        found.append(
            Case(
                kind=note.kind,
                name=note.name,
                calls=(inputs,),
                rows=rows,
                expected=expected,
                length=max(len(r) for r in expected.values()),
                input_max=max((float(np.abs(x).max()) for x in floats), default=0.0),
                start=note.start,
            )
        )
    return found


def _starting(probe: Mapping[str, Any], prefix: str) -> dict[str, Any]:
    return {name[len(prefix) :]: x for name, x in probe.items() if name.startswith(prefix)}


def _listed(names: Any) -> str:
    return ", ".join(sorted(names)) or "nothing"
