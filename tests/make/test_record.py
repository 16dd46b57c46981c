"""Build records, and where the errors of an artifact's weights come from."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from pytest_ane.make import (
    Artifact,
    BuildRecord,
    Distortion,
    WeightComparison,
    uncompressed_package,
    weights_against,
)
from pytest_ane.make.record import RECORD
from pytest_ane.manifest import Shard
from pytest_ane.mlprogram.errors import BuildError, CacheError
from pytest_ane.mlprogram.model import read_model
from tests.gates.fidelity import blocks
from tests.make.test_distortion import package

ERRORS = WeightComparison(
    (
        Distortion("u", 1.5, 25.0, "6-bit k-means", 1.2, 3.0, (4, 7)),
        Distortion("v", 0.0, 2.0, "4-bit k-means of vectors of 2"),
    ),
    ("gone",),
    ("new",),
    ("main/scale",),
)


def test_what_is_written_is_read(tmp_path: Path) -> None:
    record = BuildRecord({"shard": "L00"}, {"width": 4}, ("a note",), 1.5, ERRORS, digest="d")
    record.write(tmp_path)
    assert BuildRecord.read(tmp_path) == record


@pytest.mark.parametrize(
    "field",
    [{"weights": 3}, {"weights": {"distortions": [{"name": "u"}]}}, {"notes": None}],
)
def test_a_damaged_record(tmp_path: Path, field: dict[str, object]) -> None:
    BuildRecord({}, {}, (), 1.0).write(tmp_path)
    fields = json.loads((tmp_path / RECORD).read_text())
    (tmp_path / RECORD).write_text(json.dumps(fields | field))
    with pytest.raises(CacheError, match="is damaged"):
        BuildRecord.read(tmp_path)


def against(path: Path, record: BuildRecord | None = None, **keys: object) -> tuple[str, object]:
    shard = Shard.model_validate({"model": "m", "id": "a", "artifact": path} | keys)
    name, weights = weights_against(shard, Artifact(path, record), read_model(path))
    return name, weights if record else [(d.name, d.sse) for d in weights.distortions]


def test_errors_as_the_build_measured_them(tmp_path: Path) -> None:
    path = package(tmp_path / "a", ("u", [[3.0, 4.0]]))
    record = BuildRecord({}, {}, (), 1.0, ERRORS, digest=Artifact(path).digest)
    assert against(path, record) == ("build", ERRORS)


def test_a_build_record_says_nothing_of_other_bytes(tmp_path: Path) -> None:
    path = package(tmp_path / "a", ("u", [[3.0, 4.0]]))
    record = BuildRecord({}, {}, (), 1.0, ERRORS, digest=Artifact(path).digest)
    weights = path / "Data/com.apple.CoreML/weights/weight.bin"
    weights.write_bytes(weights.read_bytes()[:-1] + b"?")
    assert against(path, record) == ("changed", WeightComparison())


def test_errors_against_a_package_that_is_not_the_uncompressed_form(tmp_path: Path) -> None:
    """An artifact that is not compressed is its own; a reference is compared with all the same."""
    path, other = (package(tmp_path / n, ("u", [[3.0, v]])) for n, v in (("a", 4.0), ("b", 5.0)))
    assert against(path, reference=other) == ("itself", [("u", 1.0)])
    assert against(path, reference="none") == ("itself", [])


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


def test_a_reference_package_is_one_where_nothing_is_compressed(
    blocks_of: tuple[Path, Path], tmp_path: Path
) -> None:
    plain, small = blocks_of
    assert uncompressed_of(small, reference=plain) == plain
    assert uncompressed_of(small, reference=small) is None  # It is compressed itself.
    assert uncompressed_of(small, reference=tmp_path / "x.safetensors") is None


def test_weights_are_compared_with_the_uncompressed_form(
    blocks_of: tuple[Path, Path], tmp_path: Path
) -> None:
    plain, small = blocks_of
    other = package(tmp_path / "other", ("first", [[3.0, 4.0]]))
    assert against(small, reference=plain)[0] == "reference"
    assert against(small, reference="none", uncompressed=plain)[0] == "uncompressed"
    assert against(small, reference=other) == ("nothing", [])
    assert against(small, reference=small)[0] == "compressed"
    assert against(small, reference="none") == ("nothing", [])


def test_what_is_named_as_uncompressed_must_be_so(blocks_of: tuple[Path, Path]) -> None:
    small = blocks_of[1]
    with pytest.raises(BuildError, match="but its first is stored as constexpr_lut_to_dense; name"):
        uncompressed_of(small, reference="none", uncompressed=small)
