"""`pytest-ane golden record`; tests/plugin/test_golden.py holds shards against its files."""

from __future__ import annotations

from pathlib import Path

import pytest
from safetensors.numpy import load_file

from tests.packages import save_conv
from tests.tools.conftest import AsJson, Says

RECORD = ("golden", "record", "conv.mlpackage", "--backend=cpu", "--out=conv.safetensors")


@pytest.fixture(autouse=True)
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    save_conv(Path("conv.mlpackage"))


def test_as_json(as_json: AsJson) -> None:
    found = as_json(*RECORD)
    file = Path("conv.safetensors")
    assert (found["file"], found["bytes"]) == (str(file), file.stat().st_size)
    assert {probe["kind"] for probe in found["probes"]} == {"gaussian"}
    assert f"{len(found['probes']) - 1}.in.x" in load_file(file)
    assert found["origin"].startswith("conv.mlpackage (digest ")


def test_a_file_is_replaced_on_request_only(says: Says) -> None:
    (file := Path("conv.safetensors")).write_bytes(b"mine")
    assert says(*RECORD, code=1) == [f"pytest-ane: {file} exists; --overwrite replaces it."]
    assert file.read_bytes() == b"mine"
    says(*RECORD, "--overwrite")
    assert load_file(file)


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["conv.mlpackage", "--out", "conv.txt"], "--out conv.txt: golden tensors are a .safeten"),
        (["conv.mlpackage", "--out", "x.npz", "--package", "y"], "--package is for a shard"),
        (["L01", "--out", "x.safetensors", "--manifest", "no.toml"], "no.toml does not exist"),
    ],
)
def test_bad_options_are_one_sentence(says: Says, arguments: list[str], sentence: str) -> None:
    (line,) = says("golden", "record", *arguments, code=1)
    assert line.startswith(f"pytest-ane: {sentence}")


def test_an_own_shard_is_recorded_at_the_manifest_s_inputs(says: Says) -> None:
    Path("shards.toml").write_text(
        '[models.mine.shard.a]\nartifact = "conv.mlpackage"\nreference = "a.safetensors"\n'
        '[models.mine.shard."*".inputs.x]\nkind = "uniform"\nrange = [3.0, 4.0]\n'
    )
    says("golden", "record", "mine:a", "--package=conv.mlpackage", *RECORD[3:])
    drawn = [x for name, x in load_file("conv.safetensors").items() if ".in." in name]
    assert drawn
    assert all(x.min() >= 3 and x.max() <= 4 for x in drawn)
