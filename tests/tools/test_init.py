"""`pytest-ane init`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from jsonschema import Draft202012Validator

from pytest_ane.cli import main
from pytest_ane.manifest import load
from pytest_ane.manifest.base import loads
from pytest_ane.project.suite import shipped
from tests.docs.pages import ROOT
from tests.plugin.projects import make_llama
from tests.tools.conftest import AsJson, Says


def test_writes_a_manifest_and_gates(tmp_path: Path, says: Says, as_json: AsJson) -> None:
    folder = tmp_path / "new/project"
    out = says("init", folder)
    assert sorted(path.name for path in folder.iterdir()) == ["gates", "shards.toml"]
    gates = {path.name: path.read_text() for path in (folder / "gates").iterdir()}
    assert gates == {path.name: path.read_text() for path in shipped().glob("*.py")}
    assert out[0] == f"wrote {folder / 'shards.toml'}"
    assert as_json("init", str(tmp_path)) == {
        "written": [str(tmp_path / "shards.toml"), str(tmp_path / "gates")]
    }


def test_the_written_manifest_loads(tmp_path: Path) -> None:
    assert main(["init", str(tmp_path), "--no-gates"]) == 0
    assert not (tmp_path / "gates").exists()
    (model,) = load(tmp_path / "shards.toml").models
    assert model.name == "smollm2"
    assert len(model.shards) == 34
    assert model.shards[0].compression is not None
    (own,) = load(ROOT / "shards.toml").models
    assert model.prompts == own.prompts


def test_the_commented_part_of_the_manifest_loads_too(tmp_path: Path) -> None:
    assert main(["init", str(tmp_path), "--no-gates"]) == 0
    manifest = tmp_path / "shards.toml"
    head, _, tail = manifest.read_text().partition("# [models.mine")
    uncommented = "\n".join(
        line.removeprefix("# ") for line in ("# [models.mine" + tail).splitlines()
    )
    manifest.write_text(head + uncommented)
    mine = load(manifest).model_of("mine")
    assert [shard.id for shard in mine.shards] == ["encoder"]


def test_its_schema_is_what_both_manifests_keep(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], as_json: AsJson
) -> None:
    assert main(["init", "--schema", str(tmp_path / "none")]) == 0
    schema = json.loads(capsys.readouterr().out)
    assert not list(tmp_path.iterdir())
    assert schema["$schema"] == "https://json-schema.org/draft/2020-12/schema"
    Draft202012Validator.check_schema(schema)
    assert as_json("init", "--schema") == schema
    assert main(["init", str(tmp_path), "--no-gates"]) == 0
    validator = Draft202012Validator(schema)
    text = (tmp_path / "shards.toml").read_text()
    for right in (text, (ROOT / "shards.toml").read_text()):
        assert list(validator.iter_errors(loads(right))) == []
    wrong = text.replace("min-cosine", "min-cosin")
    assert len(list(validator.iter_errors(loads(wrong)))) == 1


@pytest.mark.parametrize("existing", ["shards.toml", "gates"])
def test_overwrites_nothing(tmp_path: Path, existing: str, says: Says) -> None:
    (tmp_path / existing).write_text("mine")
    assert says("init", tmp_path, code=1) == [
        f"pytest-ane: {tmp_path / existing} exists; nothing was written. Move it away first."
    ]
    assert [path.name for path in tmp_path.iterdir()] == [existing]
    assert (tmp_path / existing).read_text() == "mine"


def test_what_cannot_be_written_or_used_is_one_sentence(tmp_path: Path, says: Says) -> None:
    (file := tmp_path / "file").touch()
    (tmp_path / "model").mkdir()
    for arguments, words in (
        ([file / "project"], "cannot be written: Not a directory."),
        ([file], f"{file} is a file; name a folder for shards.toml."),
        (["--from", file, "--package", file, tmp_path / "new"], "manifest is of one or the other."),
        (
            ["--from", tmp_path / "model", tmp_path / "project"],
            "the folder is empty; name one of packages",
        ),
    ):
        (line,) = says("init", *arguments, code=1)
        assert words in line
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "model"]


def test_the_next_command_runs_in_the_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, says: Says
) -> None:
    monkeypatch.chdir(tmp_path)
    for folder, cd in ((["my project"], ["next: cd 'my project'"]), ([], [])):
        lines = says("init", "--no-gates", *folder)
        assert [line for line in lines if "cd " in line] == cd
        assert lines[-1] == "next: pytest --ane-shards=L01 -m gate"


@pytest.fixture
def mini(tmp_path: Path) -> Path:
    return make_llama(tmp_path / "mini.gguf")


def test_from_a_model(mini: Path, says: Says) -> None:
    folder = mini.parent
    out = says("init", "--from", mini, "--no-gates", folder)
    assert sorted(path.name for path in folder.iterdir()) == ["mini.gguf", "shards.toml"]
    assert out[:2] == [
        f"wrote {folder / 'shards.toml'}",
        "family llama, 3 shards; behaviour judges 69 positions",
    ]
    assert [line.partition(":")[0] for line in out[2:]] == [
        "the prompts are random ids", "L00-L01", "head.0", "all 3 shards", "disk", "memory",
        "next", "next", "then",
    ]  # fmt: skip
    (model,) = load(folder / "shards.toml").models
    assert (model.name, model.family, model.ids) == ("mini", "llama", ("L00", "L01", "head.0"))


def test_from_a_model_as_json(mini: Path, as_json: AsJson) -> None:
    folder = mini.parent / "project"
    said = as_json("init", "--from", str(mini), str(folder))
    assert said.keys() == {
        "written", "family", "positions", "notes", "shards", "states", "disk", "memory"
    }  # fmt: skip
    assert said["shards"].keys() == {"L00", "L01", "head.0"}
    assert (folder / "gates").is_dir()
