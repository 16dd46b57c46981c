"""The schema agrees with what `load` takes."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import jsonschema
import pytest

from pytest_ane.manifest import json_schema
from pytest_ane.manifest.base import loads
from tests.manifest.test_docs import EXAMPLE

SCHEMA = json_schema()
MODEL = {"family": "llama", "source": {"path": "m.gguf"}, "shards": "L00-L29, head.0"}


def valid(document: dict[str, Any]) -> bool:
    return bool(jsonschema.Draft202012Validator(SCHEMA).is_valid(document))


def test_it_is_a_schema() -> None:
    jsonschema.Draft202012Validator.check_schema(SCHEMA)
    assert SCHEMA["$schema"] == "https://json-schema.org/draft/2020-12/schema"
    assert SCHEMA["title"] == "shards.toml of pytest-ane"
    assert json.loads(json.dumps(SCHEMA)) == SCHEMA


def test_the_documented_example_is_valid() -> None:
    jsonschema.validate(loads(EXAMPLE), SCHEMA, jsonschema.Draft202012Validator)


VALID: list[Any] = [
    MODEL,
    {**MODEL, "shards": ["L00", "head.0-head.1"]},
    {**MODEL, "shard": {"L0[0-3]": {"compression": {"nbits": 8}}}},
    {**MODEL, "policy": {"compression": {"max-bytes": "5 MB"}}},
    {**MODEL, "policy": {"compression": {"max-bytes": 5}}},
    {**MODEL, "policy": {"placement": {"require": "plan"}}},
    {**MODEL, "policy": {"evidence": {"os": ["macOS 26*"], "max-age": "90 days"}}},
    {"shard": {"x": {"artifact": "x.mlpackage", "reference": "none"}}},
    {**MODEL, "source": {"seeded": 7, "config": {"text_config": {"layers": [1, 2.5, "a"]}}}},
    {**MODEL, "family": "my_package.my_family"},
    {"builder": "my_model:build", "shards": "a.0", "depends": ["weights.pt"]},
    *({"policy": {"throughput": {"max-regression": x}}} for x in (0.05, "5%", "calibrated")),
]
INVALID: list[Any] = [
    {**MODEL, "policy": {"fidelity": {"require": "plan"}}},
    {**MODEL, "policy": {"evidence": {"chips": []}}},
    {**MODEL, "policy": {"evidence": {"os": ["Tahoe"]}}},
    {**MODEL, "policy": {"evidence": {"max-age": "long"}}},
    3,
    {**MODEL, "family": "la ma"},
    {**MODEL, "source": {"seeded": -1}},
    {**MODEL, "source": {"seeded": 7, "config": 3}},
    {"builder": "my_model", "shards": "a.0"},
    {**MODEL, "max_tokens": 3},
    {**MODEL, "max-tokens": 0},
    {**MODEL, "compression": {"method": "palettize", "nbits": 5}},
    {**MODEL, "compression": {"method": "linear", "nbits": 4}},
    {**MODEL, "policy": {"compression": {"max-bytes": "5 Mb"}}},
    {**MODEL, "policy": {"fidelity": {"min-cosin": 0.9}}},
    {**MODEL, "shard": {"a b": {}}},
    {"shard": {"x": {"artifact": "x.onnx"}}},
    {"shard": {"x": {"reference": "float32s"}}},
    {"shard": {"x": {"uncompressed": "x.safetensors"}}},
    *({"policy": {"throughput": {"max-regression": x}}} for x in (7, "5", "100%")),
]


@pytest.mark.parametrize("model", VALID + INVALID)
def test_models(model: Any) -> None:
    assert valid({"models": {"m": model}}) is (model in VALID)


@pytest.mark.parametrize(
    "document", [{}, {"models": {}}, {"models": {"a b": MODEL}}, {"model": {}}]
)
def test_invalid_files(document: dict[str, Any]) -> None:
    assert not valid(document)


def test_every_key_is_described() -> None:
    keys = [*_properties(SCHEMA)]
    assert len(keys) > 60
    assert [name for name, schema in keys if len(schema.get("description", "")) < 10] == []


def test_nothing_of_pydantic_is_left() -> None:
    text = json.dumps(SCHEMA)
    assert '"null"' not in text
    assert "discriminator" not in text
    assert text.count('"title"') == 1


def _properties(schema: Any) -> Iterator[tuple[str, dict[str, Any]]]:
    if isinstance(schema, dict):
        yield from schema.get("properties", {}).items()
        for value in schema.values():
            yield from _properties(value)
