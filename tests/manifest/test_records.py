"""Sources, probes, prompts, and resolved shards."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from pytest_ane.manifest import Manifest, Model, Prompt, Shard, SourceTable

SHARDS = tuple(Shard(model="m", id=name) for name in ("L00", "head.0"))
MANIFEST = Manifest(path=Path("shards.toml"), models=(Model(name="m", shards=SHARDS),))


def test_qualified_ids() -> None:
    assert [shard.qualified for shard in MANIFEST.shards] == ["m:L00", "m:head.0"]
    assert MANIFEST.shard("m:head.0") is SHARDS[1]
    assert MANIFEST.model_of("m").ids == ("L00", "head.0")


PLACE = "give either path, or package and file, or hub, or seeded"
OWN = "a GGUF file has its own configuration"


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({}, PLACE),
        ({"path": "a", "package": "p", "file": "f"}, PLACE),
        ({"package": "p"}, PLACE),
        ({"file": "f"}, PLACE),
        ({"path": "a", "file": "f"}, PLACE),
        ({"path": "a", "seeded": 0}, PLACE),
        ({"package": "p", "file": "f", "seeded": 0}, PLACE),
        ({"seeded": 0, "file": "f"}, PLACE),
        ({"hub": "a/b", "path": "a"}, PLACE),
        ({"hub": "a/b", "package": "p", "file": "f"}, PLACE),
        ({"path": ""}, "is empty; name a file"),
        ({"seeded": 1, "sha256": "a" * 64}, "seeded weights have no sha256; leave it out"),
        ({"hub": "https://huggingface.co/a/b"}, "must be the id of a hub's repository, such as Q"),
        ({"hub": "a/b", "file": "m.gguf", "config": {"a": 1}}, OWN),
        ({"path": "m.gguf", "config": {"a": 1}}, OWN),
        ({"package": "p", "file": "m.gguf", "config": {"a": 1}}, OWN),
    ],
)
def test_what_a_source_cannot_have(values: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        SourceTable.model_validate(values)


def test_a_seeded_source_with_a_configuration() -> None:
    config = {"layers": 4, "text_config": {"hidden_size": 64, "names": ["a"]}}
    source = SourceTable.model_validate({"seeded": 0, "config": config})
    assert (source.seeded, source.config) == (0, config)
    assert SourceTable.model_validate({"path": "folder", "config": config}).config == config


def test_digests_are_written_in_any_case() -> None:
    assert SourceTable(path=Path("a"), sha256="AB" * 32).sha256 == "ab" * 32


@pytest.mark.parametrize(
    "forms", [{}, {"text": "a", "chat": "b"}, {"text": "a", "ids": [1]}, {"text": ""}, {"ids": []}]
)
def test_a_prompt_has_one_form(forms: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        Prompt.model_validate({"name": "p", **forms})


def test_what_is_expected_of_a_prompt_s_text_is_no_part_of_what_is_measured() -> None:
    prompt = Prompt(name="p", chat="Hi?", expect="Hello")
    assert prompt.question == Prompt(name="p", chat="Hi?").question
    # An answer is; without one, a recording is asked for as before there were any.
    assert "answer" not in prompt.question
    assert Prompt(name="p", chat="Hi?", answer=4).question["answer"] == 4
