"""`pytest-ane recommend` on a tiny Llama: found, kept, taken up again, written, and gated."""

from __future__ import annotations

import contextlib
import io
import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from pytest_ane.cli import main
from pytest_ane.manifest import load
from pytest_ane.report.charts.run import recommend as draw
from tests.forked import Forge
from tests.plugin.projects import LLAMA, make_llama
from tests.tools.conftest import AsJson

MENU = """
four = { method = "palettize", nbits = 4, group_size = 16 }
six = { method = "palettize", nbits = 6, group_size = 16 }
eight = { method = "palettize", mode = "uniform", nbits = 8, group_size = 32 }
"""
LIMIT = "max-kl = 0.02\n"
HEAD = "# Ours.\n"


def manifest(source: Path, extra: str = "") -> str:
    text = LLAMA.format(source=source).replace("min-greedy = 3\n", f"min-greedy = 3\n{LIMIT}")
    return HEAD + text + extra


@pytest.fixture(scope="module")
def searched(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """A folder with a manifest, a cache and the log of a search that ended, and what it said."""
    folder = tmp_path_factory.mktemp("recommend")
    source = make_llama(folder / "mini.gguf")
    (folder / "shards.toml").write_text(manifest(source))
    return folder, recommend(folder)


def recommend(folder: Path, *options: str, code: int = 0) -> str:
    """What the command says."""
    out, err = io.StringIO(), io.StringIO()
    arguments = ["recommend", "--ane-manifest", str(folder / "shards.toml"), "--ane-cache",
                 str(folder / "cache"), "--evaluations", "7", "--menu", str(folder / "menu.toml"),
                 *options]  # fmt: skip
    (folder / "menu.toml").write_text(MENU)
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        assert main(arguments) == code, err.getvalue()
    return out.getvalue() if code == 0 else err.getvalue()


def entries(folder: Path) -> list[dict[str, Any]]:
    lines = (folder / "cache" / "recommend" / "mini.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines if line]


@pytest.mark.drawn(0)
@pytest.mark.slow
def test_the_smallest_measured_is_recommended(searched: tuple[Path, str]) -> None:
    folder, said = searched
    stacks = [e for e in entries(folder) if e["kind"] == "candidate"]
    passed = [e["found"] for e in stacks if e["found"]["status"] == "passed"]
    smallest = min(passed, key=lambda found: found["bytes"])
    assert f"recommended: {smallest['name']}, " in said
    assert f"{len(stacks)} whole models measured" in said
    assert "smaller than six for all" in said
    single = next(f for f in passed if f["name"] == "six")
    assert smallest["bytes"] < single["bytes"]


@pytest.mark.slow
def test_as_json(searched: tuple[Path, str], as_json: AsJson) -> None:
    folder, said = searched
    options = ["--manifest", str(folder / "shards.toml"), "--cache", str(folder / "cache"),
               "--menu", str(folder / "menu.toml")]  # fmt: skip
    found = as_json("recommend", *options, "--evaluations", "7")
    assert f"recommended: {found['best']['name']}, " in said
    assert found["best"] in found["candidates"]
    assert (found["command"], found["model"], found["max_kl"]) == ("recommend", "mini", 0.02)
    assert all(sum(c["settings"].values()) <= c["size"] for c in found["candidates"])
    picture = draw(found)
    assert picture is not None
    assert len(picture.table.rows) == len(found["candidates"])
    assert found["compression"].keys() >= {"L00", "L01"}
    assert not found["written"]


@pytest.mark.slow
def test_every_number_is_kept_and_nothing_is_measured_twice(searched: tuple[Path, str]) -> None:
    folder, _ = searched
    before = entries(folder)
    assert {e["kind"] for e in before} >= {"alone", "shard", "stack", "candidate"}
    keys = [(e["kind"], e["key"]) for e in before if e["kind"] != "candidate"]
    assert len(keys) == len(set(keys))
    # What a search that was killed had measured is there for the next.
    recommend(folder, "--evaluations", "0.5")
    again = [e for e in entries(folder)[len(before) :] if e["kind"] not in ("candidate", "shard")]
    assert all((e["kind"], e["key"]) not in keys for e in again)


@pytest.mark.slow
def test_both_arithmetics_are_asked_for(searched: tuple[Path, str], tmp_path: Path) -> None:
    folder, _ = searched
    log = tmp_path / "both.jsonl"
    arguments = ["--arithmetic", "ane,typed", "--log", str(log), "--evaluations", "3"]
    assert "recommended: " in recommend(folder, *arguments)
    found = [e for e in map(json.loads, filter(None, log.read_text().splitlines())) if "kind" in e]
    stacks = [e["found"]["facts"] for e in found if e["kind"] == "stack"]
    assert min(facts["cost.kl"] for facts in stacks) > 0
    assert all(e["found"]["cosine"] > 0 for e in found if e["kind"] == "shard")


@pytest.mark.slow
def test_it_is_written_on_request_only(searched: tuple[Path, str], tmp_path: Path) -> None:
    folder, said = searched
    before = (folder / "shards.toml").read_text()
    assert "--write puts it into" in said
    copy = tmp_path / "shards.toml"
    copy.write_text(before)
    out = recommend(folder, "--ane-manifest", str(copy), "--write")
    assert (folder / "shards.toml").read_text() == before
    written = copy.read_text().splitlines()
    added = [line[1:] for line in out.splitlines() if line.startswith("+") and line[:3] != "+++"]
    assert sorted(written) == sorted([*before.splitlines(), *added])
    methods = {s.compression.method for s in load(copy).shards if s.compression}
    assert methods <= {"palettize", "none"}
    assert "has these settings already" in recommend(folder, "--ane-manifest", str(copy), "--write")


@pytest.mark.drawn
@pytest.mark.heavy
def test_what_is_written_passes_every_gate_from_a_cold_cache(
    searched: tuple[Path, str], tmp_path: Path, forge: Forge
) -> None:
    folder, _ = searched
    shutil.copy(folder / "shards.toml", tmp_path)
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    recommend(folder, "--ane-manifest", str(tmp_path / "shards.toml"), "--write")
    command = ["pytest", "-m", "gate", "--ane-shards=all", "-q", "-p", "no:cacheprovider"]
    done = forge.run([*command, f"--ane-cache={tmp_path / 'cold'}"], tmp_path)
    assert done.returncode == 0, done.stdout
    assert "13 passed" in done.stdout


@pytest.mark.slow
def test_nothing_passes(searched: tuple[Path, str], tmp_path: Path) -> None:
    folder, _ = searched
    strict = (folder / "shards.toml").read_text().replace(LIMIT, "max-kl = 0.0\n")
    (tmp_path / "shards.toml").write_text(strict)
    said = recommend(folder, "--ane-manifest", str(tmp_path / "shards.toml"), code=1)
    assert "mini: nothing that was measured passes every gate; add settings of more bits" in said
    at_once = recommend(folder, "--minutes", "1e-6", "--log", str(tmp_path / "log"), code=1)
    assert "nothing that was measured passes every gate" in at_once
    assert "or give the search more time" in at_once


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ("", "", "mini has no golden prompts"),
        ("[models.mini.policy.b", "[models.mini.policy.fidelity]\nrequire = 'device'\n"
         "[models.mini.policy.b", "policy.fidelity asks for what a device measured"),
        ("", "", "mini has no family"),
        ("[models.mini.policy.b", "[models.mini.shard.L00]\nartifact = 'a.mlpackage'\n"
         "reference = 'none'\n[models.mini.policy.b", "mini:L00 is a package of your own"),
    ],
)  # fmt: skip
def test_what_cannot_be_searched(old: str, new: str, says: str, tmp_path: Path) -> None:
    text = manifest(tmp_path / "none.gguf").replace(old, new)
    if "no golden prompts" in says:
        text = text[: text.index("[[models.mini.prompts]]")].replace(', "captured"', "")
    if "no family" in says:
        text = "[models.mini.shard.a]\nartifact = 'a.mlpackage'\nreference = 'none'\n"
    (tmp_path / "shards.toml").write_text(text)
    said = recommend(tmp_path, code=1)
    assert says in said
    assert "Traceback" not in said
