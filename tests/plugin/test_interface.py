"""A package of one's own for a family's shard: its inputs and outputs are held against it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.plugin.conftest import Project

_OWN = """
[models.mini.shard.L00]
artifact = "own.mlpackage"
reference = "{reference}"
"""


def convert_block(project: Project, dtype: Any, longest: int) -> None:
    """L00 as its family converts it, but for types and lengths."""
    import coremltools as ct
    import torch

    from pytest_ane.build.coremltools_quiet import converter_notes
    from pytest_ane.project.project import read_project

    project.llama()
    opened = read_project(project.path / "shards.toml", project.workshop.cache).model("mini")
    conversion = opened.language_model.conversion("L00")
    length = ct.RangeDim(1, longest, default=1)

    def shape(port: Any, flexible: Any) -> list[Any]:
        return [flexible if size == "T" else size for size in port.shape]

    examples = tuple(torch.zeros(shape(port, 2)) for port in conversion.inputs)
    with torch.no_grad(), converter_notes():
        ct.convert(
            torch.jit.trace(conversion.module.float().eval(), examples, check_trace=False),
            inputs=[
                ct.TensorType(port.name, tuple(shape(port, length)), dtype=dtype)
                for port in conversion.inputs
            ],
            outputs=[ct.TensorType("y", dtype=dtype)],
            minimum_deployment_target=ct.target.iOS18,
            skip_model_load=True,
        ).save(str(project.path / "own.mlpackage"))


@pytest.mark.parametrize("reference", ["float32", "golden.safetensors"])
def test_float32_at_the_ends_is_red_though_all_numbers_are_right(
    project: Project, reference: str
) -> None:
    convert_block(project, np.float32, 32)
    if reference != "float32":
        record(project.path / reference, project)
    project.llama(_OWN.format(reference=reference))
    result = project.gate("-k", "fidelity", shards="L00")
    result.assert_outcomes(failed=1, deselected=3)
    text = " ".join(result.stdout.str().split())
    assert (
        "The interface is not the declared one: inputs x, cos, sin, mask: fp32 in place of fp16; "
        "inputs x, cos, sin, mask: T = 1 to 32 in place of 1 to 16; output y: fp32 in place of fp16"
    ) in text
    assert "min-cosine = 0.97:" not in text


def record(path: Path, project: Project) -> None:
    from pytest_ane.cli import main

    manifest, cache = project.path / "shards.toml", project.workshop.cache
    assert main(["golden", "record", "L00", f"--out={path}", f"--manifest={manifest}",
                 f"--cache={cache}"]) == 0  # fmt: skip


def test_the_declared_interface_is_green(project: Project) -> None:
    convert_block(project, np.float16, 16)
    project.llama(_OWN.format(reference="float32"))
    project.gate("-k", "fidelity", shards="L00").assert_outcomes(passed=1, deselected=3)
