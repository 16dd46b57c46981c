"""Writes the judged shards' programs as graphs for Google's Model Explorer."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pytest_ane.manifest import Shard
from pytest_ane.mlprogram.atomic import write_atomically
from pytest_ane.mlprogram.errors import AneError
from pytest_ane.mlprogram.model import read_any
from pytest_ane.plugin.workspace import Workspace
from pytest_ane.report.html.subjects import Subject, subjects
from pytest_ane.report.model_explorer import collection, node_data
from pytest_ane.report.run import Run

_UNSAFE = re.compile(r"[^A-Za-z0-9._-]+")
_LONGEST = 120
"""Characters of a file's name before its end."""


def write(folder: Path, run: Run, space: Workspace) -> Iterator[str]:
    """A graph and its node data for every shard that a gate judged; what could not be written.

    Args:
        folder: made where it does not exist. Files of shards that were not judged stay.
        run: with its verdicts.
        space: knows where packages are.
    """
    shards = {shard.qualified: shard for shard in space.shards}
    for subject in subjects(run):
        shard = shards.get(subject.name)
        if shard is None or all(one.verdict is None for one in subject.judged):
            continue
        try:
            _write(folder, subject, shard, space)
        except AneError as error:
            yield f"ane: no graph of {subject.name}: {error}"
        except OSError as error:
            yield f"ane: the graph of {subject.name} cannot be written: {error.strerror or error}"


def _write(folder: Path, subject: Subject, shard: Shard, space: Workspace) -> None:
    path = space.package(shard)
    if path is None:
        return
    made = collection(subject.name, read_any(path, weights=False, function=shard.function))
    name = _UNSAFE.sub("_", subject.name)[:_LONGEST]
    folder.mkdir(parents=True, exist_ok=True)
    _save(folder / f"{name}.json", made)
    for word, data in node_data(subject, made["graphs"]).items():
        _save(folder / f"{name}.{word}.json", data)


def _save(file: Path, data: Any) -> None:
    write_atomically(file, json.dumps(data, allow_nan=False).encode())
