"""Modules of the user's: where they are looked for, and what of them a cache key sees."""

from __future__ import annotations

import hashlib
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from pytest_ane.manifest import Manifest, Model
from pytest_ane.manifest.records import OwnPort
from pytest_ane.mlprogram.errors import ManifestError
from pytest_ane.models.families import Layout, Port, Ports, trait
from pytest_ane.models.families._layout import AneLayout
from pytest_ane.models.families.own import (
    RenamedLayout,
    Renaming,
    code_digests,
    error_line,
    make_importable,
)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder in which modules are found."""
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    return tmp_path


def sha256(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def test_a_module_in_no_package_is_its_file(folder: Path) -> None:
    (folder / "lonely_module.py").write_text("raise AssertionError('imported')")
    (folder / "other_module.py").write_text("x = 1")
    digest = sha256("raise AssertionError('imported')")
    assert code_digests("lonely_module") == {"lonely_module": digest}


def test_a_module_in_a_package_is_all_of_the_package(folder: Path) -> None:
    package = folder / "some_package" / "inner"
    package.mkdir(parents=True)
    for name in ("__init__.py", "inner/__init__.py", "inner/family.py"):
        (folder / "some_package" / name).write_text(name)
    (package / "notes.txt").write_text("unseen")
    names = ("__init__.py", "inner/__init__.py", "inner/family.py")
    assert code_digests("some_package.inner.family") == {
        f"some_package/{name}": sha256(name) for name in names
    }
    assert "some_package" not in sys.modules


@pytest.mark.parametrize("name", ["nowhere", "__main__", ""])
def test_no_module(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.modules["__main__"], "__spec__", None)
    with pytest.raises(ManifestError) as error:
        code_digests(name)
    assert str(error.value) == f"{name} is neither in the manifest's folder nor installed."


def test_a_module_without_a_file() -> None:
    assert code_digests("sys") == {}


@pytest.mark.parametrize(
    ("model", "searched"),
    [
        ({"builder": "a:b"}, True),
        ({"family": "my.family"}, True),
        ({"family": "llama"}, False),
        ({}, False),
    ],
)
def test_a_manifest_s_folder_is_searched_only_where_it_names_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, model: dict[str, str], searched: bool
) -> None:
    monkeypatch.setattr(sys, "path", list(sys.path))
    manifest = Manifest(
        path=tmp_path / "shards.toml", models=(Model(name="m", shards=(), **model),)
    )
    for _ in range(2):
        make_importable(manifest)
    assert sys.path.count(str(tmp_path)) == int(searched)


def test_an_error_of_many_lines_is_said_in_one() -> None:
    assert error_line(ValueError("two\n  lines."), "nowhere") == "ValueError: two lines"
    assert error_line(KeyError(), "nowhere") == "KeyError"


TRAITS = ("window", "entry_scale", "causal", "recurrent")
X, Y = Port("x", (1, 4, "T", 1)), Port("y", (1, 4, "T", 1))


def renamed(layout: Any) -> RenamedLayout:
    own = {"x": OwnPort(name="hidden"), "y": OwnPort(name="out"), "tail": OwnPort(name="past")}
    ports = Ports((X,), (Y,), (Port("tail", (1, 2)),))
    return RenamedLayout(cast("Layout", layout), Renaming("m:L00", ports, own))


def test_all_that_a_family_tells_of_its_layout() -> None:
    family = AneLayout("gemma3", 4, window=9, recurrent=("tail",), entry_scale=1 / 32)
    own = renamed(family)
    assert (own.width, own.sees, own.shifts) == (family.width, family.sees, family.shifts)
    assert [trait(own, name) for name in TRAITS] == [9, 1 / 32, True, ("past",)]
    hidden = np.ones((2, 4), np.float32)
    assert own.inputs(hidden)["hidden"].shape == (1, 4, 2, 1)
    np.testing.assert_array_equal(own.output({"out": np.ones((1, 4, 2, 1), np.float32)}), hidden)


def test_what_a_family_of_the_user_s_own_leaves_out() -> None:
    own = renamed(SimpleNamespace(width=4, sees="itself"))
    assert [trait(own, name) for name in TRAITS] == [None, 1.0, True, None]
