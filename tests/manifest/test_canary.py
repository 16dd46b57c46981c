"""`canary` of a model, and `[run]`: what they may say, and what they become."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.manifest.conftest import Complaints, Read

SHARDS = "".join(
    f'[models.m.shard."{name}"]\nartifact = "e.mlpackage"\nreference = "none"\n'
    for name in ("L00", "L01", "L02", "head.0", "head.1")
)


@pytest.mark.parametrize(
    ("value", "ids"),
    [
        ('["L01"]', ("L01",)),
        ('"L01"', ("L01",)),
        ('["head.0", "L00"]', ("L00", "head.0")),
        ('"L00-L01, head*"', ("L00", "L01", "head.0", "head.1")),
        ('["*"]', ("L00", "L01", "L02", "head.0", "head.1")),
        ("[]", ()),
    ],
)
def test_ids_ranges_and_globs_in_the_model_s_order(
    read: Read, value: str, ids: tuple[str, ...]
) -> None:
    (model,) = read(f"[models.m]\ncanary = {value}\n{SHARDS}").models
    assert model.canary == ids


def test_a_model_has_none_by_default(read: Read) -> None:
    assert read(SHARDS).models[0].canary == ()


@pytest.mark.parametrize(
    ("value", "says"),
    [
        ('["L7"]', '"L7": matches no shard; nearest: L02, L01, L00.'),
        ('["L00", "tail*"]', '"tail*": matches no shard; '),
        ('["L01-L04"]', '"L01-L04": takes in L03, which is none; nearest: L02, L01, L00.'),
        ('["L02-L01"]', "the range 'L02-L01' counts backwards"),
        ("3", "3: must be a list of shard ids, ranges and globs"),
        ("[1]", "[1]: must be a list of shard ids"),
        ('""', "matches no shard"),
    ],
)
def test_what_names_no_shard_is_said(complaints: Complaints, value: str, says: str) -> None:
    (line,) = complaints(f"[models.m]\ncanary = {value}\n{SHARDS}")
    assert line.startswith("shards.toml:2: [models.m] canary = ")
    assert says in line


def test_a_folder_for_temporary_files_is_relative_to_the_manifest(
    read: Read, tmp_path: Path
) -> None:
    assert read(SHARDS).tmpdir is None
    assert read(f'[run]\ntmpdir = "scratch"\n{SHARDS}').tmpdir == tmp_path / "scratch"
    assert read(f'[run]\ntmpdir = "/scratch"\n{SHARDS}').tmpdir == Path("/scratch")


def test_an_empty_folder_name_is_refused(complaints: Complaints) -> None:
    (line,) = complaints(f'[run]\ntmpdir = ""\n{SHARDS}')
    assert line.startswith('shards.toml:2: [run] tmpdir = "": ')


def test_a_run_that_is_no_table_is_refused(complaints: Complaints) -> None:
    (line,) = complaints(f"run = 3\n{SHARDS}")
    assert line.startswith("shards.toml:1: run = 3: ")
