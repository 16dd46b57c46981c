"""`--function`: commands on one function of a package, and on shards by the function's id."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from pytest_ane.cli import main
from tests import multifunction
from tests.tools.conftest import AsJson


@pytest.fixture(scope="module")
def packages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return multifunction.make(tmp_path_factory.mktemp("functions"))


@pytest.fixture
def manifest(packages: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    table = '[models.own.shard.decoder]\nartifact = "{}"\nreference = "{}"\n'
    path = tmp_path / "shards.toml"
    path.write_text(table.format(packages["other"], packages["reference"]))
    monkeypatch.chdir(tmp_path)
    return path


def test_explain(packages: dict[str, Path], as_json: AsJson) -> None:
    package = str(packages["ineligible"])
    outcomes = [
        as_json("explain", package, *function)["outcome"]
        for function in ((), ("--function=decode",), ("--function=verify4",))
    ]
    assert outcomes == ["ineligible", "eligible", "ineligible"]


def test_weights(packages: dict[str, Path], as_json: AsJson) -> None:
    package, against = str(packages["other"]), f"--against={packages['reference']}"
    right, wrong = (
        as_json("explain", "--weights", package, against, f"--function={name}")["weights"]
        for name in ("decode", "verify4")
    )
    assert (len(right), len(wrong)) == (1, 1)
    assert right[0]["snr_db"] > 50 > 5 > wrong[0]["snr_db"]


def test_weights_of_the_default_function(
    packages: dict[str, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["explain", "--weights", str(packages["other"])]) == 0
    first, *_, total = capsys.readouterr().out.splitlines()
    assert first == "function decode of decode, verify4; --function names another"
    assert total == "1 weight, 128 bytes, 1.00x smaller than fp16"


def test_diff(packages: dict[str, Path], capsys: pytest.CaptureFixture[str]) -> None:
    pair = ["diff", str(packages["other"]), str(packages["reference"])]
    assert [main([*pair, f"--function={name}"]) for name in ("decode", "verify4")] == [0, 1]
    twin = ["diff", str(packages["other"]), str(multifunction.compiled(packages["other"]))]
    assert main([*twin, "--function=verify4", "--tolerance=0"]) == 0
    assert main([*pair[:2], str(packages["foreign"]), "--function=decode"]) == 1
    assert "has no function 'decode' to compare with" in capsys.readouterr().err


def test_run(packages: dict[str, Path], as_json: AsJson, tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.ones((1, 8, 1, 4), np.float32))
    data = as_json(
        "run", str(packages["other"]), "--function=verify4", f"--input=x={tmp_path / 'x.npy'}"
    )
    assert data["outputs"]["y"]["shape"] == [1, 8, 1, 4]


def test_blame_of_a_shard(
    manifest: Path, as_json: AsJson, tmp_path: Path, packages: dict[str, Path]
) -> None:
    cache = f"--cache={tmp_path / 'cache'}"
    assert list(as_json("blame", "decoder[verify4]", cache)["shards"]) == ["own:decoder[verify4]"]
    package, against = str(packages["other"]), f"--against={packages['reference']}"
    assert list(as_json("blame", package, against, cache)["shards"]) == [
        "package:multi-other[decode]",
        "package:multi-other[verify4]",
    ]


def test_golden_of_a_shard(manifest: Path, capsys: pytest.CaptureFixture[str]) -> None:
    record = ["golden", "record", "decoder[verify4]", "--out=v.safetensors", "--backend=cpu"]
    package = manifest.read_text().partition('reference = "')[2].strip().strip('"')
    assert main([*record, f"--package={package}"]) == 0
    record.append("--overwrite")
    assert main(["golden", "record", "decoder", *record[3:], f"--package={package}"]) == 1
    assert main([*record, "--function=decode"]) == 1
    out, err = capsys.readouterr()
    assert "2 probes" in out
    assert "decoder names 2 shards; record one at a time" in err
    assert "name a shard's as SHARD[FUNCTION]" in err


def test_a_call_runs_one_function(manifest: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bound", "shards.toml", "--device=M1", "--cache=cache"]) == 0
    out = capsys.readouterr().out
    assert "decoder[decode]" in out
    assert "decoder[verify4]" not in out
