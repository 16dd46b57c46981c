"""`pytest-ane golden record`; tests/plugin/test_golden.py holds shards against its files."""

from __future__ import annotations

from pathlib import Path

import pytest
from safetensors.numpy import load_file

from pytest_ane.cli import main
from tests.packages import save_conv
from tests.tools.conftest import AsJson


@pytest.fixture
def package(tmp_path: Path) -> Path:
    save_conv(tmp_path / "conv.mlpackage")
    return tmp_path / "conv.mlpackage"


def test_as_json(package: Path, as_json: AsJson) -> None:
    file = package.with_name("conv.safetensors")
    found = as_json("golden", "record", str(package), "--out", str(file), "--backend", "cpu")
    assert (found["file"], found["bytes"]) == (str(file), file.stat().st_size)
    assert {probe["kind"] for probe in found["probes"]} == {"gaussian"}
    assert f"{len(found['probes']) - 1}.in.x" in load_file(file)
    assert found["origin"].startswith("conv.mlpackage (digest ")


def test_a_file_is_replaced_on_request_only(
    package: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (file := package.with_name("conv.safetensors")).write_bytes(b"mine")
    record = ["golden", "record", str(package), "--out", str(file), "--backend", "cpu"]
    assert main(record) == 1
    assert capsys.readouterr().err == f"pytest-ane: {file} exists; --overwrite replaces it.\n"
    assert file.read_bytes() == b"mine"
    assert main([*record, "--overwrite"]) == 0
    assert load_file(file)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (
            ["{package}", "--out", "conv.txt"],
            "--out conv.txt: golden tensors are a .safetensors or an",
        ),
        (["{package}", "--out", "x.safetensors", "--package", "y"], "--package is for a shard"),
        (["L01", "--out", "x.safetensors", "--manifest", "no.toml"], "no.toml does not exist"),
    ],
)
def test_bad_options_are_one_sentence(
    package: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], says: str
) -> None:
    words = [argument.format(package=package) for argument in arguments]
    assert main(["golden", "record", *words]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"pytest-ane: {says}")


def test_an_own_shard_is_recorded_at_the_manifest_s_inputs(
    package: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(package.parent)
    Path("shards.toml").write_text(
        '[models.mine.shard.a]\nartifact = "conv.mlpackage"\nreference = "a.safetensors"\n'
        '[models.mine.shard."*".inputs.x]\nkind = "uniform"\nrange = [3.0, 4.0]\n'
    )
    record = ["golden", "record", "mine:a", "--package", str(package), "--out", "a.safetensors"]
    assert main([*record, "--backend", "cpu"]) == 0
    drawn = [x for name, x in load_file("a.safetensors").items() if ".in." in name]
    assert drawn
    assert all(x.min() >= 3 and x.max() <= 4 for x in drawn)
