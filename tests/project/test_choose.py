"""Which model a command is for."""

from __future__ import annotations

from pathlib import Path

import pytest

from pytest_ane.manifest import Manifest, Model, Shard
from pytest_ane.mlprogram.errors import ManifestError
from pytest_ane.project.choose import choose_model, is_complete


def model(name: str, *shards: str, family: str | None = "llama") -> Model:
    listed = tuple(Shard(model=name, id=shard, family=family) for shard in shards)
    return Model(name=name, family=family, shards=listed)


STACK = model("stack", "L00", "L01", "head.0")
BLOCKS = model("blocks", "L00", "L01")
OWN = model("own", "a", family=None)


def manifest(*models: Model) -> Manifest:
    return Manifest(path=Path("shards.toml"), models=models)


def test_the_only_one_needs_no_name() -> None:
    assert choose_model(manifest(OWN), None) is OWN
    assert choose_model(manifest(OWN, STACK, BLOCKS), None, stacks=True) is STACK
    assert choose_model(manifest(OWN, STACK), "own") is OWN


@pytest.mark.parametrize(
    ("models", "name", "stacks", "message"),
    [
        ((BLOCKS, STACK), None, False, "has 2 models; name one of them: blocks, stack."),
        ((BLOCKS, STACK), "stak", False, "has no model 'stak'; nearest: stack."),
        ((BLOCKS, STACK), "blocks", True, "has no model 'blocks' that a family or a chain wires"),
        ((OWN, BLOCKS), None, True, "shards.toml has no model that a family or a chain wires"),
    ],
)
def test_what_is_wrong(
    models: tuple[Model, ...], name: str | None, stacks: bool, message: str
) -> None:
    with pytest.raises(ManifestError) as error:
        choose_model(manifest(*models), name, stacks=stacks)
    assert message in str(error.value)


def test_a_stack_is_complete_with_every_shard_selected() -> None:
    every = [shard.qualified for shard in STACK.shards]
    assert is_complete(STACK, every)
    assert not is_complete(STACK, every[1:])
    assert not is_complete(BLOCKS, [shard.qualified for shard in BLOCKS.shards])
    assert not is_complete(OWN, ["own:a"])


def test_a_shard_that_the_family_does_not_have_is_an_error_of_the_model() -> None:
    odd = model("odd", "attic")
    with pytest.raises(ManifestError, match=r"^odd: .*attic"):
        is_complete(odd, ["odd:attic"])
