"""Packages of torch modules, and the fidelity gate's verdict on one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from pytest_ane.backends import CpuBackend
from pytest_ane.gates.fidelity import judge, measure
from pytest_ane.make.coremltools_quiet import converter_notes, import_coremltools
from pytest_ane.manifest import Input, Policy, Probes
from pytest_ane.probes.package import package_cases


def save(
    path: Path, module: torch.nn.Module, inputs: Sequence[Any], *examples: Any, **options: Any
) -> Path:
    """A module's package, whose metadata tell its name: twins are not the same bytes."""
    ct = import_coremltools()
    with torch.no_grad(), converter_notes():
        traced = torch.jit.trace(module.eval(), examples)
        model = ct.convert(
            traced, inputs=inputs, minimum_deployment_target=ct.target.iOS18,
            skip_model_load=True, **options,
        )  # fmt: skip
        model.user_defined_metadata["made"] = path.stem
        model.save(str(path))
    return path


def status(
    artifact: Path,
    reference: Path | None,
    probes: Probes,
    inputs: Mapping[str, Input] | None = None,
) -> str:
    """By the default policy."""
    cases = package_cases(CpuBackend(), artifact, reference, probes, inputs)
    runner = CpuBackend().load(artifact)
    measured = measure(runner, cases, compared=reference is not None, provenance={}, budget="none")
    return judge(measured, Policy().fidelity, "mine:x").status
