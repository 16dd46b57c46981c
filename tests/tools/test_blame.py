"""`pytest-ane blame`."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.gates.fidelity import blocks
from tests.tools.conftest import AsJson, Says

GOOD = dict.fromkeys(blocks.NAMES, 8)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """`plain/model.mlpackage`, and `small/model.mlpackage` with `second` in 2 bits."""
    blocks.palettized(blocks.plain(tmp_path), tmp_path / "small", GOOD | {"second": 2})
    monkeypatch.chdir(tmp_path)
    return tmp_path


BLAME = ("blame", "--ane-cache", "cache")
PAIR = ("small/model.mlpackage", "--against", "plain/model.mlpackage")


def test_a_package_against_its_uncompressed_form(folder: Path, says: Says) -> None:
    found = says(*BLAME, *PAIR)
    assert found[0].startswith("compression: ")
    assert found[1].startswith("relative error of the output on the worst 4 of ")
    assert found[3].startswith("weight ")
    assert found[4].startswith("second ")


def test_a_package_alone(folder: Path, says: Says) -> None:
    found = says(*BLAME, "small/model.mlpackage")
    assert found[2] == (
        "package:model has no uncompressed package to take weights from; name one as its "
        "'uncompressed', or with --against."
    )
    assert found[3].startswith("op ")


def test_shards_of_a_manifest(folder: Path, says: Says) -> None:
    (folder / "shards.toml").write_text(
        "".join(
            f'[models.own.shard.{name}]\nartifact = "small/model.mlpackage"\n'
            'reference = "plain/model.mlpackage"\n'
            for name in ("one", "two")
        )
    )
    found = says(*BLAME, "all")
    assert [line for line in found if line.startswith("own:")] == ["own:one", "own:two"]
    assert sum(line.startswith("second ") for line in found) == 2
    assert says(*BLAME, "one") == found[1 : found.index("")]


def test_as_json(folder: Path, as_json: AsJson) -> None:
    (blame,) = as_json(*BLAME, *PAIR)["shards"].values()
    assert blame["weights"][0]["weight"]["name"] == "second"
    assert blame["weights"][0]["share"] > 0.5


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["all"], "shards.toml does not exist"),
        (["all", "--against", "x"], "--against x is for a package; what all is held against"),
        (["none.mlpackage"], "none.mlpackage does not exist; check the path"),
        (["small/model.mlpackage", "--against", "x.mlpackage"], "x.mlpackage"),
        (
            ["small/model.mlpackage", "--against", "small/model.mlpackage"],
            "but its first is stored as constexpr_lut_to_dense; name the program before",
        ),
    ],
)
def test_errors_are_one_sentence(
    folder: Path, says: Says, arguments: list[str], words: str
) -> None:
    assert words in says(*BLAME, *arguments, code=1)[-1]
