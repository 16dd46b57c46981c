"""The JSON Schema of `shards.toml`, so that editors complete and check it."""

from __future__ import annotations

from typing import Any

from pytest_ane.manifest.tables import ManifestTable


def json_schema() -> dict[str, Any]:
    """JSON Schema (draft 2020-12) generated from the records."""
    schema = ManifestTable.model_json_schema(by_alias=True)
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema}
