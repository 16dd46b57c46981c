"""`pytest-ane try`: one command from a model to three lines."""

from __future__ import annotations

from pathlib import Path

import pytest

from pytest_ane.report.run import Row
from pytest_ane.tools._try import _next
from tests.anemll import save_folder
from tests.packages import save_layers
from tests.tools.conftest import AsJson, Says


def row(gate: str, shard: str, status: str, summary: str, *reasons: str) -> Row:
    return Row(gate, f"mine:{shard}", status, summary, reasons=reasons)


GREEN = row("fidelity", "a", "passed", "cosine 0.9990 (needs 0.97)")
RED = row("fidelity", "a", "failed", "cosine 0.5 < 0.97", "wrong function: 0.4 is wrong")
ON = row("placement", "a", "passed", "on the ANE (predicted: M4)")
OFF = row("placement", "b", "passed", "off the ANE (3 of 4 ops) · conv_ane=0/1")


def test_what_is_next() -> None:
    assert _next([GREEN, ON], "all") == []
    assert _next([GREEN, ON], "a") == ["pytest --ane-shards=all -m gate"]
    assert _next([RED, ON], "a") == ["pytest-ane blame a"]
    assert _next([GREEN, OFF], "all") == ["pytest-ane explain b"]


@pytest.mark.slow
def test_a_stack_beside_its_plain_form(tmp_path: Path, says: Says) -> None:
    save_folder(tmp_path / "fp16")
    save_folder(tmp_path / "lut8", lut=8)
    out = tmp_path / "out"
    said = says("try", tmp_path / "lut8", "--reference", tmp_path / "fp16", "--out", out)
    assert said[-3].startswith(
        "right?       yes: chunk1[infer], chunk1[prefill], chunk2[infer] and 2 more"
    )
    assert said[-3].endswith("centred cosine 1.0000 (needs 0.9)")
    assert said[-2].startswith("on the ANE?  no: ")
    assert (out / "report.html").stat().st_size > 10_000


@pytest.mark.slow
def test_a_manifest_that_was_edited_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, as_json: AsJson
) -> None:
    """Written anew while it is as it was written; `pytest.ini` and conftest above do not count."""
    (tmp_path / "pytest.ini").write_text("[pytest]\naddopts = --no-such-option\n")
    (tmp_path / "conftest.py").write_text("raise SystemExit('above')\n")
    monkeypatch.chdir(tmp_path)
    save_layers(tmp_path).rename(tmp_path / "a.mlpackage")
    save_layers(tmp_path, seed=1).rename(tmp_path / "b.mlpackage")
    alone = as_json("try", "a.mlpackage")
    assert alone["right"]["answer"] == "not known"
    assert alone["right"]["says"].startswith("nobody said")
    again = as_json("try", "a.mlpackage", "--reference=b.mlpackage", code=1)
    assert again["right"]["answer"] == "no"
    assert again["right"]["says"].startswith("a fidelity: ")
    assert again["next"][0] == "pytest-ane blame a"
    assert again["error"] == "red: 1 of 3 gates."
    manifest = tmp_path / "try-a/shards.toml"
    manifest.write_text(manifest.read_text().replace('"../b.mlpackage"', '"none"'))
    assert as_json("try", "a.mlpackage", "--reference=b.mlpackage")["red"] == 0
    other = as_json("try", "a.mlpackage", code=1)["error"]
    assert other.endswith("of a.mlpackage b.mlpackage; name another folder: --out DIR.")
