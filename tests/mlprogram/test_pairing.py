"""Programs that are the same but for names, descriptions and metadata, or but for compression."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pytest_ane.make.coremltools_quiet import converter_notes, import_coremltools
from pytest_ane.mlprogram.model import read_model
from pytest_ane.mlprogram.pairing import Restorer, program_digest, same_form
from tests.gates.fidelity import blocks


@pytest.fixture
def plain(tmp_path: Path) -> Path:
    return blocks.plain(tmp_path)


def digest(path: Path) -> str:
    return program_digest(read_model(path))


def test_names_inside_and_metadata_do_not_matter(plain: Path, tmp_path: Path) -> None:
    made = blocks.program()
    made.model.description.metadata.userDefined["author"] = "another"
    for op in made.block.operations:
        for named in (*op.outputs, *(a for g in op.inputs.values() for a in g.arguments)):
            if named.name.startswith(("first", "second")):
                named.name = f"other_{named.name}"
    assert digest(plain) == digest(made.save(tmp_path / "renamed"))


def test_weights_and_operations_do(plain: Path, tmp_path: Path) -> None:
    other = blocks.plain(tmp_path / "seed", seed=1)
    assert digest(plain) != digest(other)
    assert same_form(read_model(plain), read_model(other))
    made = blocks.program()
    relu = next(op for op in made.block.operations if op.type == "relu")
    relu.type = "tanh"
    wrong = made.save(tmp_path / "wrong")
    assert digest(plain) != digest(wrong)
    assert not same_form(read_model(plain), read_model(wrong))


def test_compression_is_none_of_a_form(plain: Path, tmp_path: Path) -> None:
    small = blocks.palettized(plain, tmp_path / "small", {"first": 4})
    assert same_form(read_model(plain), read_model(small))
    assert digest(plain) != digest(small)


WIDE = np.random.default_rng(0).standard_normal((48, 32)).astype(np.float16)


def product(path: Path, how: str, weight: Any) -> Path:
    """`y [1, 4, 48]` of `x [1, 4, 32]` and a weight `[48, 32]`, as another operation each."""
    ct = import_coremltools()
    from coremltools.converters.mil import Builder as mb
    from coremltools.converters.mil.mil import Function, Program, types

    with converter_notes():
        spec = mb.TensorSpec((1, 4, 32), types.fp16)
        with Function({"x": spec}, ct.target.iOS18) as function:
            x = function.inputs["x"]
            if how == "linear":
                y = mb.linear(x=x, weight=mb.const(val=weight, name="w"), name="y")
            elif how == "matmul":
                y = mb.matmul(x=x, y=mb.const(val=weight.T.copy(), name="w"), name="y")
            else:
                kernel = mb.const(val=weight[:, :, None], name="w")
                turned = mb.conv(x=mb.transpose(x=x, perm=[0, 2, 1]), weight=kernel)
                y = mb.transpose(x=turned, perm=[0, 2, 1], name="y")
            function.set_outputs([y])
        program = Program()
        program.add_function("main", function)
        ct.convert(
            program, convert_to="mlprogram", minimum_deployment_target=ct.target.iOS18,
            skip_model_load=True,
        ).save(str(path))  # fmt: skip
    return path


@pytest.mark.parametrize("mine", ["linear", "matmul", "conv"])
@pytest.mark.parametrize("theirs", ["linear", "matmul", "conv"])
def test_one_weight_in_three_shapes(mine: str, theirs: str, tmp_path: Path) -> None:
    other = (1.25 * WIDE).astype(np.float16)
    a, b = (
        product(tmp_path / "a.mlpackage", mine, WIDE),
        product(tmp_path / "b.mlpackage", theirs, other),
    )
    restorer = Restorer(read_model(a), read_model(b))
    assert restorer.names == ("w",)
    x = np.random.default_rng(1).standard_normal((1, 4, 32)).astype(np.float32)
    given = restorer.session(("w",), precision="float32").predict({"x": x})["y"]
    assert np.allclose(given, x @ other.astype(np.float32).T, atol=1e-4)
