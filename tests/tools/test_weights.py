"""`pytest-ane weights`."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from pytest_ane.cli import main
from pytest_ane.make import BuildRecord, Distortion, WeightComparison
from pytest_ane.mlprogram.digests import tree_digest
from tests.make.test_distortion import package
from tests.tools.conftest import AsJson


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """`entry/shard.mlpackage` as in the cache, without its record, and `other/model.mlpackage`."""
    package(tmp_path / "entry", ("u", [[3.0, 4.0]]), ("v", np.ones((1, 3000)))).rename(
        tmp_path / "entry" / "shard.mlpackage"
    )
    package(tmp_path / "other", ("u", [[3.0, 5.0]]))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def lines(capsys: pytest.CaptureFixture[str], *arguments: str) -> list[str]:
    assert main(["explain", "--weights", *arguments]) == 0
    return capsys.readouterr().out.splitlines()


def test_what_is_stored(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    head, u, v, total = lines(capsys, "entry/shard.mlpackage")
    assert head.split() == ["weight", "shape", "stored", "as", "bits", "groups", "bytes"]
    assert [line.split() for line in (u, v)] == [
        ["u", "1x2", "const", "16", "0", "4"],
        ["v", "1x3000", "const", "16", "0", "6,000"],
    ]
    assert total == "2 weights, 6,004 bytes, 1.00x smaller than fp16"
    assert lines(capsys, "other/model.mlpackage")[-1].startswith("1 weight, 4 bytes, ")


def test_against_another_package(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    head, u, _, _, missing = lines(
        capsys, "entry/shard.mlpackage", "--against", "other/model.mlpackage"
    )
    assert head.endswith("  SSE  SNR dB")
    assert float(u.split()[-2]) == 1
    assert missing.startswith("1 of them have no counterpart of the same name and shape in other/")


def test_as_it_was_built(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    key = {"compression": {"method": "palettize", "granularity": "per_tensor"}}
    errors = (Distortion("u", 0.0, 25.0), Distortion("v", 2.0, 3000.0))
    digest = tree_digest(folder / "entry/shard.mlpackage")
    weights = WeightComparison(errors)
    BuildRecord(key, {}, ("v: too plain.",), 1.0, weights, digest=digest).write(folder / "entry")
    _, u, v, _ = lines(capsys, "entry/shard.mlpackage")
    assert "  fp16 (small)  " in u
    assert "  palettized (kmeans, 4 bits, per_tensor)  " in v
    assert v.endswith("  31.8  too plain")


def test_as_json(folder: Path, as_json: AsJson) -> None:
    found = as_json(
        "explain", "--weights", "entry/shard.mlpackage", "--against", "other/model.mlpackage"
    )
    u, v = found["weights"]
    assert (u["name"], u["shape"], u["storage"], u["sse"]) == ("u", [1, 2], "const", 1)
    assert "sse" not in v
    assert found["bytes"] == 6004


def test_a_record_of_another_version(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    digest = tree_digest(folder / "entry/shard.mlpackage")
    key = {"compression": {"method": "magic"}}
    BuildRecord(key, {}, (), 1.0, digest=digest).write(folder / "entry")
    assert lines(capsys, "entry/shard.mlpackage")[0].split()[:3] == ["weight", "shape", "stored"]


def test_a_record_says_nothing_of_other_bytes(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    weights = WeightComparison((Distortion("v", 2.0, 3000.0),))
    BuildRecord({}, {}, (), 1.0, weights, digest="0" * 64).write(folder / "entry")
    first, head, *_ = lines(capsys, "entry/shard.mlpackage")
    assert first == "the package has other bytes than its build measured: errors are left out"
    assert "SNR" not in head


def test_a_damaged_record(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "entry" / "build.json").write_text('{"notes": 3}')
    assert main(["explain", "--weights", "entry/shard.mlpackage"]) == 1
    assert "build.json is damaged" in capsys.readouterr().err


def test_a_missing_package(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", "--weights", "entry/shard.mlpackage", "--against", "no.mlpackage"]) == 1
    assert (
        capsys.readouterr().err == "pytest-ane: no.mlpackage: not an .mlpackage (no such folder).\n"
    )
