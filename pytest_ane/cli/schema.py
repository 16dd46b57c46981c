"""`pytest-ane schema`."""

from __future__ import annotations

import json
from collections.abc import Iterator


def run() -> Iterator[str]:
    """The manifest's JSON Schema."""
    from pytest_ane.manifest import json_schema

    yield json.dumps(json_schema(), indent=2)
