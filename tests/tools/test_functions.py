"""`--function`: commands on one function of a package, and on shards by the function's id."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests import multifunction
from tests.tools.conftest import AsJson, Says


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


@pytest.mark.drawn
@pytest.mark.slow
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


def test_weights_of_the_default_function(packages: dict[str, Path], says: Says) -> None:
    first, *_, total = says("explain", "--weights", packages["other"])
    assert first == "function decode of decode, verify4; --function names another"
    assert total == "1 weight, 128 bytes, 1.00x smaller than fp16"


def test_diff(packages: dict[str, Path], says: Says) -> None:
    other = packages["other"]
    for name, code in (("decode", 0), ("verify4", 1)):
        says("diff", other, packages["reference"], f"--function={name}", code=code)
    says("diff", other, multifunction.compiled(other), "--function=verify4", "--tolerance=0")
    *_, error = says("diff", other, packages["foreign"], "--function=decode", code=1)
    assert "has no function 'decode' to compare with" in error


def test_run(packages: dict[str, Path], as_json: AsJson, tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.ones((1, 8, 1, 4), np.float32))
    given = f"--input=x={tmp_path / 'x.npy'}"
    data = as_json("run", packages["other"], "--function=verify4", given)
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


def test_golden_of_a_shard(manifest: Path, packages: dict[str, Path], says: Says) -> None:
    record = ["--out=v.npz", "--backend=cpu", f"--package={packages['reference']}"]
    assert "2 probes" in says("golden", "record", "decoder[verify4]", *record)[0]
    record.append("--overwrite")
    (error,) = says("golden", "record", "decoder", *record, code=1)
    assert "decoder names 2 shards; record one at a time" in error
    (error,) = says("golden", "record", "decoder[verify4]", *record, "--function=decode", code=1)
    assert "name a shard's as SHARD[FUNCTION]" in error


def test_a_call_runs_one_function(manifest: Path, says: Says) -> None:
    out = "\n".join(says("bound", "shards.toml", "--device=M1", "--cache=cache"))
    assert "decoder[decode]" in out
    assert "decoder[verify4]" not in out
