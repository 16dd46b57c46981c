"""Packages on disk: what is read, and one sentence for everything that is wrong with one."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from pytest_ane.mlprogram.errors import ProgramError
from pytest_ane.mlprogram.model import read_model
from tests.mlprogram.packages import doubling, model_file, weight_file

POINTER = "version https://git-lfs.github.com/spec/v1\noid sha256:" + "0" * 64 + "\nsize 9\n"


def complaint(package: Path, *, weights: bool = True) -> str:
    """The one sentence of the error, the package's folder cut off."""
    with pytest.raises(ProgramError) as caught:
        read_model(package, weights=weights)
    text = str(caught.value)
    assert "\n" not in text
    assert text.endswith(".") or text.endswith("pull")
    return text.replace(str(package), "P")


def test_a_model_has_everything(tmp_path: Path) -> None:
    program = doubling()
    program.model.description.metadata.userDefined["source"] = "hand"
    package = program.save(tmp_path)
    model = read_model(package)
    assert model.path == str(package)
    assert model.weights == str(weight_file(package).parent)
    assert model.specification_version == 9
    assert [f.name for f in model.inputs] == ["x"]
    assert [f.name for f in model.outputs] == ["y"]
    assert model.states == ()
    assert model.metadata == {"source": "hand"}
    assert [op.op for op in model.program.walk()] == ["const", "add"]


def test_structure_alone_needs_no_weights(tmp_path: Path) -> None:
    package = doubling().save(tmp_path)
    weight_file(package).unlink()
    assert read_model(package, weights=False).program.main.name == "main"
    assert complaint(package) == (
        "P/Data/com.apple.CoreML/weights/weight.bin: the weights file is missing; "
        "copy the whole package."
    )


def test_equal_bytes_are_read_once_and_others_whatever_their_time(tmp_path: Path) -> None:
    program = doubling()
    program.model.description.metadata.userDefined["source"] = "hand"
    package = program.save(tmp_path)
    first, file = read_model(package), model_file(package)
    assert read_model(package) is first
    status = file.stat()
    file.write_bytes(file.read_bytes().replace(b"hand", b"mind"))
    os.utime(file, ns=(status.st_atime_ns, status.st_mtime_ns))
    assert read_model(package).metadata == {"source": "mind"}
    weight_file(package).unlink()
    assert "the weights file is missing" in complaint(package)


def test_no_such_folder(tmp_path: Path) -> None:
    assert complaint(tmp_path / "none") == "P: not an .mlpackage (no such folder)."


def test_a_file_is_no_package(tmp_path: Path) -> None:
    file = tmp_path / "a.mlpackage"
    file.write_bytes(b"")
    assert complaint(file) == "P: not an .mlpackage (it is a file)."


def test_a_file_of_the_older_kind(tmp_path: Path) -> None:
    file = tmp_path / "a.mlmodel"
    file.write_bytes(b"")
    assert complaint(file) == (
        "P: is one file, not an .mlpackage of an ML Program; convert it again with "
        'convert_to="mlprogram".'
    )


def test_no_manifest(tmp_path: Path) -> None:
    package = doubling().save(tmp_path)
    (package / "Manifest.json").unlink()
    assert complaint(package) == "P/Manifest.json: missing; the package is incomplete."


@pytest.mark.parametrize(
    "content", [b"", b"{", b"[]", b"{}", b"\xff\xfe", b"[" * 100_000, b'{"itemInfoEntries": 3}']
)
def test_a_damaged_manifest(tmp_path: Path, content: bytes) -> None:
    package = doubling().save(tmp_path)
    (package / "Manifest.json").write_bytes(content)
    assert complaint(package).startswith("P/Manifest.json: damaged (")


@pytest.mark.parametrize("path", ["../../x", "/etc/passwd", "../../../../etc/passwd"])
def test_a_manifest_that_leaves_the_package(tmp_path: Path, path: str) -> None:
    package = with_root(doubling().save(tmp_path), path)
    assert complaint(package) == f"P/Manifest.json: names a model outside the package: {path!r}."


@pytest.mark.parametrize("path", ["", "com.apple.CoreML", "missing.mlmodel", None, 5, "a\0b"])
def test_a_manifest_that_names_no_file(tmp_path: Path, path: object) -> None:
    text = complaint(with_root(doubling().save(tmp_path), path))
    assert "Manifest.json" in text


def with_root(package: Path, path: object) -> Path:
    manifest = {"itemInfoEntries": {"A": {"path": path}}, "rootModelIdentifier": "A"}
    (package / "Manifest.json").write_text(json.dumps(manifest))
    return package


@pytest.mark.parametrize(
    "where",
    [lambda p: p / "Manifest.json", model_file, weight_file],
    ids=["manifest", "model", "weights"],
)
def test_a_pointer_in_place_of_the_file(tmp_path: Path, where: Callable[[Path], Path]) -> None:
    package = doubling().save(tmp_path)
    where(package).write_text(POINTER)
    text = complaint(package)
    assert "is a Git LFS pointer" in text
    assert text.endswith("run: git lfs pull")
    assert where(package).name in text


def test_every_way_to_cut_the_model_short(tmp_path: Path) -> None:
    package = doubling().save(tmp_path)
    whole = model_file(package).read_bytes()
    for size in range(len(whole)):
        model_file(package).write_bytes(whole[:size])
        with pytest.raises(ProgramError):
            read_model(package)


def test_every_byte_of_the_model_flipped(tmp_path: Path) -> None:
    """No flip may end in anything but a model or one sentence."""
    package = doubling().save(tmp_path)
    whole = model_file(package).read_bytes()
    complaints = []
    for at in range(len(whole)):
        model_file(package).write_bytes(whole[:at] + bytes([whole[at] ^ 0xFF]) + whole[at + 1 :])
        try:
            read_model(package)
        except ProgramError as error:
            complaints.append(str(error))
    assert len(complaints) > len(whole) // 2
    assert not [text for text in complaints if "\n" in text]


def test_the_older_kind_is_refused(tmp_path: Path) -> None:
    program = doubling()
    program.model.neuralNetwork.SetInParent()
    assert complaint(program.save(tmp_path)) == (
        "P/Data/com.apple.CoreML/model.mlmodel: is a neuralNetwork, not an ML Program; "
        'convert it again with convert_to="mlprogram".'
    )


def test_an_empty_model_is_of_no_kind(tmp_path: Path) -> None:
    package = doubling().save(tmp_path)
    model_file(package).write_bytes(b"")
    assert "is a model of no kind, not an ML Program" in complaint(package)


def test_a_missing_coremltools_is_not_called_a_damaged_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def absent() -> object:
        raise ProgramError("coremltools is not installed; run: pip install coremltools")

    package = doubling().save(tmp_path)
    monkeypatch.setattr("pytest_ane.mlprogram.package.definitions", absent)
    with pytest.raises(ProgramError, match="coremltools is not installed"):
        read_model(package)
