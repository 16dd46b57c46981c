"""Seals: an entry that was damaged or edited is noticed, said and made again."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from pytest_ane.make.cache import Cache
from pytest_ane.make.disk import KINDS
from pytest_ane.make.shared_store import SEAL
from pytest_ane.mlprogram.digests import file_digest, remembered
from pytest_ane.mlprogram.errors import CacheError
from tests.make.makers import KEY
from tests.permissions import permitted, tree

OTHER = "b" * 64
WEIGHT = "shard.mlpackage/Data/weights/weight.bin"
FILES = {WEIGHT: bytes(range(256)) * 16, "record.json": b'{"probes": [1, 2]}'}
KEYS = {"artifacts": KEY, "budgets": KEY, "compiled": f"{KEY}-0", "recordings": KEY}
Edit = Callable[[Path], None]


def make(folder: Path, step: int = 1) -> None:
    """Two files, one of them deep in folders; backwards, others of the same names and sizes."""
    for name, data in FILES.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(data[::step])


def refuse(folder: Path) -> None:
    raise AssertionError("made again")


class Told(list[str]):
    """A cache, and what it says."""

    def __init__(self, root: Path) -> None:
        super().__init__()
        self.cache = Cache(root, notify=self.append)


@pytest.fixture
def told(tmp_path: Path) -> Told:
    return Told(tmp_path / "cache")


def flip(entry: Path) -> None:
    """One bit, with the time of modification put back."""
    file, stat = entry / WEIGHT, (entry / WEIGHT).stat()
    data = bytearray(file.read_bytes())
    data[1000] ^= 1
    file.write_bytes(data)
    os.utime(file, ns=(stat.st_atime_ns, stat.st_mtime_ns))


def swap(entry: Path) -> None:
    """A file of another sealed entry, with the times of the one that it replaces."""
    other = entry.with_name(OTHER) / WEIGHT
    stat = (entry / WEIGHT).stat()
    shutil.copy(other, entry / WEIGHT)
    os.utime(entry / WEIGHT, ns=(stat.st_atime_ns, stat.st_mtime_ns))


def swap_entry(entry: Path) -> None:
    """The whole of another entry, its seal included."""
    shutil.rmtree(entry)
    shutil.copytree(entry.with_name(OTHER), entry)


def edit_seal(change: Callable[[dict[str, object]], object]) -> Edit:
    def edit(entry: Path) -> None:
        seal = json.loads((entry / SEAL).read_text())
        change(seal)
        (entry / SEAL).write_text(json.dumps(seal))

    return edit


def link(entry: Path) -> None:
    """A link to a file with the same bytes: it may change without the entry."""
    outside = entry.parents[2] / "outside"
    (entry / WEIGHT).replace(outside)
    (entry / WEIGHT).symlink_to(outside)


def fifo(entry: Path) -> None:
    (entry / WEIGHT).unlink()
    os.mkfifo(entry / WEIGHT)


EDITS: dict[str, tuple[Edit, str]] = {
    "a flipped bit": (flip, f"{WEIGHT} has other bytes"),
    "an empty file": (lambda entry: os.truncate(entry / WEIGHT, 0), f"{WEIGHT} has other bytes"),
    "a removed file": (lambda entry: (entry / WEIGHT).unlink(), f"{WEIGHT} is missing"),
    "an added file": (
        lambda entry: (entry / "shard.mlpackage/\x1b[2J").touch(),
        "shard.mlpackage/\\x1b[2J was added",
    ),
    "an added link to a folder": (
        lambda entry: (entry / "all").symlink_to("/", target_is_directory=True), "all was added",
    ),
    "a linked file": (link, f"{WEIGHT} is no regular file"),
    "a pipe": (fifo, f"{WEIGHT} is no regular file"),
    "a file of another entry": (swap, f"{WEIGHT} has other bytes"),
    "another entry": (swap_entry, f"{SEAL} is of another entry"),
    "no seal": (lambda entry: (entry / SEAL).unlink(), f"{SEAL} is missing"),
    "a cut seal": (lambda entry: os.truncate(entry / SEAL, 40), f"{SEAL} is damaged"),
    "a seal of a list": (
        lambda entry: (entry / SEAL).write_text("[1]") and None, f"{SEAL} is damaged",
    ),
    "a seal without a file": (
        edit_seal(lambda seal: seal["files"].pop(WEIGHT)), f"{WEIGHT} was added",  # type: ignore[attr-defined]
    ),
}  # fmt: skip


@pytest.mark.drawn
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("edit", "wrong"), EDITS.values(), ids=EDITS)
def test_an_edited_entry_is_made_again_and_that_is_said(
    told: Told, kind: str, edit: Edit, wrong: str
) -> None:
    key = KEYS[kind]
    entry = told.cache.get_or_make(kind, key, make)
    told.cache.get_or_make(kind, OTHER, partial(make, step=-1))
    edit(entry)
    assert told.cache.get(kind, key, "mini:L00") is None
    again = told.cache.get_or_make(kind, key, make, "mini:L00")
    assert again == entry
    assert {name: (again / name).read_bytes() for name in FILES} == FILES
    assert told.cache.get_or_make(kind, key, refuse) == told.cache.get(kind, key) == entry
    assert list((told.cache.root / "tmp").iterdir()) == []
    words = {
        "artifacts": "package",
        "budgets": "error budget",
        "compiled": "compiled model",
        "recordings": "recorded reference",
    }
    where = f"mini:L00: its {words[kind]} in the cache ({kind}/{KEY[:16]})"
    said = f"{where} was damaged or edited: {wrong}"
    assert told == [f"{said}; it is not used.", f"{said}; it is made again."]


def test_files_and_seal_changed_alike_go_unnoticed(told: Told) -> None:
    """A seal is no signature, and the documentation says so."""
    entry = told.cache.get_or_make("artifacts", KEY, make)
    flip(entry)
    seal = json.loads((entry / SEAL).read_text())
    seal["files"][WEIGHT] = file_digest(entry / WEIGHT)
    (entry / SEAL).write_text(json.dumps(seal))
    assert told.cache.get_or_make("artifacts", KEY, refuse) == entry
    assert not told


def test_what_the_finder_adds_is_no_damage(told: Told) -> None:
    entry = told.cache.get_or_make("artifacts", KEY, make)
    (entry / ".DS_Store").touch()
    assert told.cache.get_or_make("artifacts", KEY, refuse) == entry
    (entry / "shard.mlpackage" / ".DS_Store").touch()
    assert told.cache.get("artifacts", KEY) is None


@pytest.mark.parametrize("whole", [False, True])
def test_a_damaged_entry_that_may_not_be_removed(told: Told, whole: bool) -> None:
    """Its own folder, or the whole cache, can only be read."""
    entry, root = told.cache.get_or_make("artifacts", KEY, make), told.cache.root
    flip(entry)
    folders = tree(root) if whole else [entry.parent]
    with permitted(0o555, *folders), pytest.raises(CacheError) as error:
        Cache(root).get_or_make("artifacts", KEY, make, "mini:L00")
    rest = f"cannot be replaced (Permission denied); delete {entry}, or choose another folder"
    if whole:
        rest = f"the cache folder {root} cannot be written (Permission denied); choose another"
    assert str(error.value) == (
        f"mini:L00: its package in the cache (artifacts/{KEY[:16]}) was damaged or edited: "
        f"{WEIGHT} has other bytes, and {rest} with --ane-cache=DIR."
    )


def test_a_warm_cache_may_be_read_only(told: Told) -> None:
    root = told.cache.root
    entry = told.cache.get_or_make("artifacts", KEY, make)
    with permitted(0o555, *tree(root)):
        warm = Told(root)
        warm.cache.sweep()
        with remembered(root / "digests"):
            assert warm.cache.get_or_make("artifacts", KEY, refuse) == entry
        assert warm.cache.get("artifacts", OTHER) is None
        with pytest.raises(CacheError) as error:
            warm.cache.get_or_make("artifacts", OTHER, make, "mini:L01")
    assert str(error.value) == (
        f"mini:L01: its package is not in the cache, and the cache folder {root} cannot be written "
        "(Permission denied); choose another with --ane-cache=DIR."
    )
    assert not warm


def test_another_user_s_entry_whose_time_may_not_be_set(
    told: Told, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only a file's owner, or who may write it, may set its time."""
    entry = told.cache.get_or_make("artifacts", KEY, make)

    def refuse_time(*_: object, **__: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr("pytest_ane.make.cache.os.utime", refuse_time)
    assert told.cache.get_or_make("artifacts", KEY, refuse) == entry
