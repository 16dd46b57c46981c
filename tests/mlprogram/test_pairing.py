"""Programs that are the same but for names, descriptions and metadata, or but for compression."""

from __future__ import annotations

from pathlib import Path

import pytest

from pytest_ane.mlprogram.model import read_model
from pytest_ane.mlprogram.pairing import program_digest, same_form
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
