"""Programs that are the same but for names, descriptions and metadata, or but for compression."""

from __future__ import annotations

from pathlib import Path

import pytest

from pytest_ane.mlprogram.model import read_model
from pytest_ane.mlprogram.pairing import same_program
from tests.gates.fidelity import blocks


@pytest.fixture
def plain(tmp_path: Path) -> Path:
    return blocks.plain(tmp_path)


def test_names_inside_do_not_matter(plain: Path, tmp_path: Path) -> None:
    made = blocks.program()
    for op in made.block.operations:
        for named in (*op.outputs, *(a for g in op.inputs.values() for a in g.arguments)):
            if named.name.startswith(("first", "second")):
                named.name = f"other_{named.name}"
    assert same_program(read_model(plain), read_model(made.save(tmp_path / "renamed")))


def test_weights_and_operations_do(plain: Path, tmp_path: Path) -> None:
    other = blocks.plain(tmp_path / "seed", seed=1)
    assert not same_program(read_model(plain), read_model(other))
    assert same_program(read_model(plain), read_model(other), weights=False)
    made = blocks.program()
    relu = next(op for op in made.block.operations if op.type == "relu")
    relu.type = "tanh"
    wrong = read_model(made.save(tmp_path / "wrong"))
    assert not same_program(read_model(plain), wrong, weights=False)


def test_compression_is_none_of_a_program(plain: Path, tmp_path: Path) -> None:
    small = read_model(blocks.palettized(plain, tmp_path / "small", {"first": 4}))
    assert same_program(read_model(plain), small, weights=False)
    assert not same_program(read_model(plain), small)
