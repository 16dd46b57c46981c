"""`pytest-ane blame`."""

from __future__ import annotations

from pathlib import Path

import pytest

from pytest_ane.cli import main
from tests.gates.fidelity import blocks
from tests.tools.conftest import AsJson

GOOD = dict.fromkeys(blocks.NAMES, 8)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """`plain/model.mlpackage`, and `small/model.mlpackage` with `second` in 2 bits."""
    blocks.palettized(blocks.plain(tmp_path), tmp_path / "small", GOOD | {"second": 2})
    monkeypatch.chdir(tmp_path)
    return tmp_path


def told(capsys: pytest.CaptureFixture[str], *arguments: str, code: int = 0) -> list[str]:
    assert main(["blame", *arguments, "--ane-cache", "cache"]) == code
    captured = capsys.readouterr()
    return (captured.err if code else captured.out).splitlines()


def test_a_package_against_its_uncompressed_form(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plain = "plain/model.mlpackage"
    found = told(capsys, "small/model.mlpackage", "--against", plain)
    assert found[0].startswith("compression: ")
    assert found[1].startswith("relative error of the output on the worst 4 of ")
    assert found[3].startswith("weight ")
    assert found[4].startswith("second ")


def test_a_package_alone(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = told(capsys, "small/model.mlpackage")
    assert found[2] == (
        "package:model has no uncompressed package to take weights from; name one as its "
        "'uncompressed', or with --against."
    )
    assert found[3].startswith("operation ")


def test_shards_of_a_manifest(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "shards.toml").write_text(
        "".join(
            f'[models.own.shard.{name}]\nartifact = "small/model.mlpackage"\n'
            'reference = "plain/model.mlpackage"\n'
            for name in ("one", "two")
        )
    )
    found = told(capsys, "all")
    assert [line for line in found if line.startswith("own:")] == ["own:one", "own:two"]
    assert sum(line.startswith("second ") for line in found) == 2
    assert told(capsys, "one") == found[1 : found.index("")]


def test_as_json(folder: Path, as_json: AsJson) -> None:
    arguments = ["small/model.mlpackage", "--against", "plain/model.mlpackage", "--cache", "cache"]
    (blame,) = as_json("blame", *arguments)["shards"].values()
    assert blame["weights"][0]["weight"]["name"] == "second"
    assert blame["weights"][0]["share"] > 0.5


@pytest.mark.parametrize(
    ("arguments", "says"),
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
    folder: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], says: str
) -> None:
    (line,) = told(capsys, *arguments, code=1)
    assert says in line
