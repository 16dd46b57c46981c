"""`pytest-ane schema`."""

from __future__ import annotations

import argparse
import json

from pytest_ane.cli.output import Output

EXAMPLE = "pytest-ane schema > shards.schema.json"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """None: the schema is JSON with `--json` and without."""


def run(options: argparse.Namespace) -> Output:
    """The manifest's JSON Schema."""
    from pytest_ane.manifest import json_schema

    schema = json_schema()
    yield from json.dumps(schema, indent=2).split("\n")
    return schema
