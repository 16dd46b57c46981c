"""A package of one's own for a family's shard: its inputs and outputs are held against it."""

from __future__ import annotations

import shutil
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


def convert_block(
    project: Project, dtype: Any, longest: int, rename: Any = lambda module: (module, {}, "y")
) -> None:
    """L00 as its family converts it, but for types, lengths, and what `rename` does to it.

    `rename` gives another module, shapes and names of its inputs, and the output's name.
    """
    import coremltools as ct
    import torch

    from pytest_ane.make.coremltools_quiet import converter_notes
    from pytest_ane.project.project import read_project

    project.llama()
    opened = read_project(project.path / "shards.toml", project.workshop.cache).model("mini")
    conversion = opened.language_model.conversion("L00")
    length = ct.RangeDim(1, longest, default=1)

    def shape(port: Any, flexible: Any) -> list[Any]:
        return [flexible if size == "T" else size for size in port.shape]

    module, own, output = rename(conversion.module.float().eval())
    ports = [own.get(port.name, port) for port in conversion.inputs]
    examples = tuple(torch.zeros(shape(port, 2)) for port in ports)
    with torch.no_grad(), converter_notes():
        ct.convert(
            torch.jit.trace(module, examples, check_trace=False),
            inputs=[
                ct.TensorType(port.name, tuple(shape(port, length)), dtype=dtype) for port in ports
            ],
            outputs=[ct.TensorType(output, dtype=dtype)],
            minimum_deployment_target=ct.target.iOS18,
            skip_model_load=True,
        ).save(str(project.path / "own.mlpackage"))


@pytest.mark.slow
@pytest.mark.drawn
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


def _rows_first(module: Any) -> Any:
    """The block on `hidden_in [1, T, C]`, which gives `hidden_out [1, C, T, 1]`."""
    import torch

    from pytest_ane.models.families import Port

    class RowsFirst(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.block = module

        def forward(self, hidden: Any, *others: Any) -> Any:
            return self.block(hidden.transpose(1, 2)[..., None], *others)

    return RowsFirst().eval(), {"x": Port("hidden_in", (1, "T", 64))}, "hidden_out"


_PORTS = """
[models.mini.shard.L00.ports]
x = {{ name = "hidden_in", axes = {axes} }}
y = "hidden_out"
"""


@pytest.mark.slow
@pytest.mark.drawn
def test_a_package_may_call_its_ports_otherwise_and_turn_their_axes(project: Project) -> None:
    convert_block(project, np.float16, 16, _rows_first)
    project.llama(_OWN.format(reference="float32") + _PORTS.format(axes=[0, 2, 1]))
    project.gate("-k", "fidelity", shards="L00").assert_outcomes(passed=1, deselected=3)
    project.llama(_OWN.format(reference="float32"))
    project.gate("-k", "fidelity", shards="L00").assert_outcomes(failed=1, deselected=3)


@pytest.mark.parametrize(
    ("ports", "sentence"),
    [
        ('x = "hidden_in"\nz = "a"', "ports names 'z', which its family does not have"),
        ("x = { axes = [0, 1, 3] }", "ports.x gives the axes [0, 1, 3]; x has the shape"),
        ("x = { axes = [0, 1, 1] }", "axes names one twice; give each once"),
        ("x = {}", "give a name, or axes"),
    ],
)
def test_ports_that_the_family_has_not(project: Project, ports: str, sentence: str) -> None:
    project.llama(_OWN.format(reference="float32") + f"[models.mini.shard.L00.ports]\n{ports}\n")
    shutil.copytree(project.workshop.packages["good"], project.path / "own.mlpackage")
    result = project.gate("-k", "fidelity", shards="L00")
    assert sentence in " ".join((result.stdout.str() + result.stderr.str()).split())


# `[models.NAME.shard.ID.inputs.INPUT]` in a run: what own packages are probed at.
