"""Digests: of files, of folders, of keys."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_ane.digests import file_digest, key_digest, tree_bytes, tree_digest, tree_files

EMPTY = hashlib.sha256(b"").hexdigest()
ABC = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"


@pytest.fixture
def package(tmp_path: Path) -> Path:
    """Two files, one of them in a folder: 3 bytes and none."""
    (tmp_path / "Data").mkdir()
    (tmp_path / "Data" / "weight.bin").write_bytes(b"abc")
    (tmp_path / "Manifest.json").write_bytes(b"")
    return tmp_path


def test_a_file_s_digest_is_sha256_of_its_bytes(package: Path) -> None:
    assert file_digest(package / "Data" / "weight.bin") == ABC
    assert file_digest(package / "Manifest.json") == EMPTY


def test_a_file_longer_than_one_read(tmp_path: Path) -> None:
    content = bytes(range(256)) * 5000
    (tmp_path / "long").write_bytes(content)
    assert file_digest(tmp_path / "long") == hashlib.sha256(content).hexdigest()


def test_a_file_that_changed_is_read_again(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"abc")
    assert file_digest(path) == ABC
    path.write_bytes(b"abd")
    os.utime(path, ns=(0, 0))
    assert file_digest(path) == hashlib.sha256(b"abd").hexdigest()


def test_a_file_that_did_not_change_is_read_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"abc")
    file_digest(path)

    def refuse(*_: object) -> None:
        raise AssertionError("read again")

    monkeypatch.setattr(Path, "open", refuse)
    assert file_digest(path) == ABC


def test_a_folder_s_files_by_relative_path(package: Path) -> None:
    assert tree_files(package) == {"Data/weight.bin": ABC, "Manifest.json": EMPTY}
    assert tree_bytes(package) == 3


def test_a_folder_s_digest_is_of_names_and_digests(package: Path) -> None:
    lines = f"Data/weight.bin {ABC}\nManifest.json {EMPTY}\n"
    assert tree_digest(package) == hashlib.sha256(lines.encode()).hexdigest()


@pytest.mark.parametrize("change", ["content", "name", "more", "less"])
def test_a_folder_s_digest_changes_with_anything_in_it(package: Path, change: str) -> None:
    before = tree_digest(package)
    file = package / "Data" / "weight.bin"
    if change == "content":
        file.write_bytes(b"abd")
        os.utime(file, ns=(0, 0))
    elif change == "name":
        file.rename(package / "Data" / "weights.bin")
    elif change == "more":
        (package / "Data" / "extra").touch()
    else:
        (package / "Manifest.json").unlink()
    assert tree_digest(package) != before


def test_a_folder_s_digest_does_not_depend_on_where_it_lies(package: Path, tmp_path: Path) -> None:
    before = tree_digest(package / "Data")
    assert tree_digest((package / "Data").rename(tmp_path / "Moved")) == before


def test_a_key_s_digest_is_of_its_canonical_json() -> None:
    text = b'{"a":[1,null],"b":"\\u00e9"}'
    assert key_digest({"b": "é", "a": [1, None]}) == hashlib.sha256(text).hexdigest()


@given(st.dictionaries(st.text(), st.integers() | st.text() | st.booleans()))
def test_a_key_s_digest_does_not_depend_on_the_order_of_its_parts(key: dict[str, object]) -> None:
    assert key_digest(key) == key_digest(dict(reversed(key.items())))
    assert key_digest(key) != key_digest({**key, "more": 1, "and more": 2})
