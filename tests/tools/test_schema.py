"""`pytest-ane schema`."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from jsonschema import Draft202012Validator

from pytest_ane.cli import main
from pytest_ane.tools.init import MANIFEST
from tests.tools.conftest import AsJson

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib


def test_prints_a_schema_that_the_manifest_of_init_keeps(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["schema"]) == 0
    schema = json.loads(capsys.readouterr().out)
    assert schema["$schema"] == "https://json-schema.org/draft/2020-12/schema"
    Draft202012Validator.check_schema(schema)
    validator = Draft202012Validator(schema)
    assert list(validator.iter_errors(tomllib.loads(MANIFEST))) == []
    wrong = MANIFEST.replace("min-cosine", "min-cosin")
    assert len(list(validator.iter_errors(tomllib.loads(wrong)))) == 1


@pytest.mark.slow
def test_the_schema_is_json_either_way(capsys: pytest.CaptureFixture[str], as_json: AsJson) -> None:
    assert main(["schema"]) == 0
    assert json.loads(capsys.readouterr().out) == as_json("schema")


def test_the_repositorys_manifest_keeps_it(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["schema"]) == 0
    validator = Draft202012Validator(json.loads(capsys.readouterr().out))
    text = (Path(__file__).resolve().parents[2] / "shards.toml").read_text()
    assert list(validator.iter_errors(tomllib.loads(text))) == []
