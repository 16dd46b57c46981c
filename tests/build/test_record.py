"""Build records, and where the errors of an artifact's weights come from."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from pytest_ane.build import (
    Artifact,
    BuildRecord,
    Distortion,
    uncompressed_package,
    weight_distortions,
)
from pytest_ane.build.record import RECORD
from pytest_ane.core.errors import CacheError
from pytest_ane.manifest import Shard
from pytest_ane.mil import read_model
from tests.build.test_distortion import package
from tests.gates.fidelity import blocks

ERRORS = (Distortion("u", 1.5, 25.0), Distortion("v", 0.0, 2.0))


def test_what_is_written_is_read(tmp_path: Path) -> None:
    record = BuildRecord({"shard": "L00"}, {"width": 4}, ("a note",), 1.5, ERRORS)
    record.write(tmp_path)
    assert BuildRecord.read(tmp_path) == record


def test_an_error_that_is_not_a_number_stays_so(tmp_path: Path) -> None:
    BuildRecord({}, {}, (), 1.0, (Distortion("u", math.nan, 1.0),)).write(tmp_path)
    assert math.isnan(BuildRecord.read(tmp_path).distortions[0].sse)


@pytest.mark.parametrize(
    "field", [{"distortions": 3}, {"distortions": [{"name": "u"}]}, {"notes": None}]
)
def test_a_damaged_record(tmp_path: Path, field: dict[str, object]) -> None:
    BuildRecord({}, {}, (), 1.0).write(tmp_path)
    fields = json.loads((tmp_path / RECORD).read_text())
    (tmp_path / RECORD).write_text(json.dumps(fields | field))
    with pytest.raises(CacheError, match="is damaged"):
        BuildRecord.read(tmp_path)


def test_errors_as_the_build_measured_them(tmp_path: Path) -> None:
    path = package(tmp_path / "a", ("u", [[3.0, 4.0]]))
    artifact = Artifact(path, BuildRecord({}, {}, (), 1.0, ERRORS))
    assert weight_distortions(artifact, read_model(path), "float32") == ERRORS


def test_errors_against_the_reference_package(tmp_path: Path) -> None:
    path, other = (package(tmp_path / n, ("u", [[3.0, v]])) for n, v in (("a", 4.0), ("b", 5.0)))
    assert weight_distortions(Artifact(path), read_model(path), other) == (
        Distortion("u", 1.0, 34.0),
    )
    assert weight_distortions(Artifact(path), read_model(path), "none") == ()


@pytest.fixture(scope="module")
def blocks_of(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A package, and the same program in 8 bits."""
    folder = tmp_path_factory.mktemp("packages")
    plain = blocks.plain(folder)
    return plain, blocks.palettized(plain, folder / "small", dict.fromkeys(blocks.NAMES, 8))


def uncompressed_of(path: Path, **keys: object) -> Path | None:
    shard = Shard.model_validate({"model": "m", "id": "a", "artifact": path, **keys})
    return uncompressed_package(shard, Artifact(path), read_model(path))


def test_an_uncompressed_package_is_its_own_uncompressed_form(
    blocks_of: tuple[Path, Path], tmp_path: Path
) -> None:
    plain, small = blocks_of
    assert uncompressed_of(plain, reference="none") == plain
    assert uncompressed_of(small, reference="none") is None
    assert uncompressed_of(small, reference="none", uncompressed=plain) == plain


def test_a_reference_package_is_one_where_it_has_the_same_program(
    blocks_of: tuple[Path, Path], tmp_path: Path
) -> None:
    plain, small = blocks_of
    assert uncompressed_of(small, reference=plain) == plain
    assert uncompressed_of(small, reference=small) is None  # It is compressed itself.
    other = package(tmp_path / "other", ("u", [[3.0, 4.0]]))
    assert uncompressed_of(small, reference=other) is None
    assert uncompressed_of(small, reference=tmp_path / "x.safetensors") is None
