"""Digests: of files, of folders, of keys."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from pytest_ane.mlprogram import digests
from pytest_ane.mlprogram.digests import (
    check_links,
    content_digest,
    file_digest,
    key_digest,
    remembered,
    tree_bytes,
    tree_digest,
    tree_files,
)
from pytest_ane.mlprogram.errors import ProgramError

EMPTY = hashlib.sha256(b"").hexdigest()
ABC = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"


@pytest.fixture
def package(tmp_path: Path) -> Path:
    """Two files, one of them in a folder: 3 bytes and none."""
    (tmp_path / "Data").mkdir()
    (tmp_path / "Data" / "weight.bin").write_bytes(b"abc")
    (tmp_path / "Manifest.json").write_bytes(b"")
    return tmp_path


def test_links_that_stay_inside_are_part_of_a_package(tmp_path: Path) -> None:
    package = tmp_path / "X.mlpackage"
    for name, content in (("one", b"abc"), ("other", b"abd")):
        (package / name).mkdir(parents=True)
        (package / name / "weight.bin").write_bytes(content)
    (package / "weight.bin").symlink_to("one/weight.bin")
    (package / "Data").symlink_to(package / "one")
    (package / "Loop").symlink_to(package)
    (package / "Self").symlink_to("Self")
    files = tree_files(package)
    assert sorted(files) == ["Data", "Loop", "one/weight.bin", "other/weight.bin", "weight.bin"]
    assert files["weight.bin"] == ABC
    assert tree_bytes(package) == 6
    before = tree_digest(package)
    linked = tmp_path / "linked.mlpackage"
    linked.symlink_to(package)
    assert tree_digest(linked) == before
    (package / "Data").unlink()
    (package / "Data").symlink_to(package / "other")
    assert tree_digest(package) != before


@pytest.mark.parametrize("digest", [tree_files, tree_digest])
def test_what_is_no_folder_has_no_digest_of_one(tmp_path: Path, digest: Any) -> None:
    """All of them would have the digest of nothing."""
    (file := tmp_path / "golden.npz").write_bytes(b"abc")
    with pytest.raises(ProgramError, match=r"golden.npz: is a file, and a package is a folder"):
        digest(file)
    with pytest.raises(ProgramError, match=r"gone.mlpackage: no such package; check the path."):
        digest(tmp_path / "gone.mlpackage")


def test_content_is_of_a_file_or_of_a_folder(package: Path) -> None:
    """Of a file longer than what is read at once, too."""
    assert content_digest(package) == tree_digest(package)
    assert content_digest(package / "Data/weight.bin") == ABC
    assert content_digest(package / "gone") == "missing"
    assert file_digest(package / "Manifest.json") == EMPTY
    (package / "long").write_bytes(long := bytes(range(256)) * 5000)
    assert file_digest(package / "long") == hashlib.sha256(long).hexdigest()


@pytest.mark.parametrize(
    ("name", "target"),
    [
        ("Data/usr", "/usr"),
        ("Data/proc", "/proc"),
        ("Data/root", "/proc/self/root/usr"),
        ("up", ".."),
        ("Data/up", "../.."),
        ("Data/zero", "/dev/zero"),
        ("Data/absent", "/nowhere/at/all"),
        ("Data/twin", "../../X.mlpackage-2"),
    ],
)
def test_a_link_that_leads_outside_is_refused_before_anything_is_read(
    tmp_path: Path, name: str, target: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "X.mlpackage"
    (package / "Data").mkdir(parents=True)
    (package / "A").write_bytes(b"abc")
    (package / name).symlink_to(target)
    monkeypatch.setattr(digests, "file_digest", pytest.fail)
    for check in (tree_files, tree_digest, check_links):
        with pytest.raises(ProgramError) as error:
            check(package)
        assert str(error.value) == (
            f"{package / name}: links to {os.path.realpath(package / name)}, outside of its "
            "package, and is not followed; put a copy in its place, of all links with: "
            "cp -RL PACKAGE COPY"
        )
    assert tree_bytes(package) == 3


def test_links_that_lead_to_one_another_take_no_time(tmp_path: Path) -> None:
    """Every path through ten folders that link to each other would be millions."""
    for here in range(10):
        (tmp_path / f"{here}").mkdir()
        for there in range(10):
            (tmp_path / f"{here}" / f"to{there}").symlink_to(tmp_path / f"{there}")
    assert len(tree_files(tmp_path)) == 100


def test_a_file_is_read_once_and_again_when_it_changed(tmp_path: Path, reads: list[str]) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"abc")
    assert [file_digest(path) for _ in range(2)] == [ABC] * 2
    path.write_bytes(b"abd")
    os.utime(path, ns=(0, 0))
    assert file_digest(path) == hashlib.sha256(b"abd").hexdigest()
    assert reads == ["file"] * 2


def test_a_folder_s_digest_is_of_names_and_digests(package: Path) -> None:
    assert tree_files(package) == {"Data/weight.bin": ABC, "Manifest.json": EMPTY}
    assert tree_bytes(package) == 3
    lines = f"Data/weight.bin {ABC}\nManifest.json {EMPTY}\n"
    assert tree_digest(package) == hashlib.sha256(lines.encode()).hexdigest()


def test_a_folder_s_digest_changes_with_anything_in_it(package: Path) -> None:
    file, found = package / "Data" / "weight.bin", [tree_digest(package)]
    for change in (
        lambda: (file.write_bytes(b"abd"), os.utime(file, ns=(0, 0))),
        lambda: file.rename(package / "Data" / "weights.bin"),
        (package / "Data" / "extra").touch,
        (package / "Manifest.json").unlink,
    ):
        change()
        found.append(tree_digest(package))
    assert len({*found}) == 5


def test_a_key_s_digest_is_of_its_canonical_json() -> None:
    text = b'{"a":[1,null],"b":"\\u00e9"}'
    assert key_digest({"b": "é", "a": [1, None]}) == hashlib.sha256(text).hexdigest()


@pytest.fixture
def settled(tmp_path: Path) -> Path:
    """A file of three bytes that has not changed for a while."""
    path = tmp_path / "settled"
    path.write_bytes(b"abc")
    return path


@pytest.fixture
def later(monkeypatch: pytest.MonkeyPatch) -> None:
    """Time goes on, so that files of this test are no longer new."""
    now = time.time_ns
    monkeypatch.setattr("pytest_ane.mlprogram.digests.time.time_ns", lambda: now() + 10**10)


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of the files that were hashed, each time."""
    found: list[str] = []
    opened = Path.open

    def note(self: Path, mode: str = "r", *args: Any, **kwargs: Any) -> Any:
        if mode == "rb" and self.suffix != ".jsonl":
            found.append(self.name)
        return opened(self, mode, *args, **kwargs)

    monkeypatch.setattr(Path, "open", note)
    return found


def hashed(path: Path, cache: Path, *, rehash: bool = False) -> str:
    """A file's digest as a new process tells it that remembers in a folder."""
    with remembered(cache, rehash=rehash):
        return file_digest(path)


@pytest.mark.usefixtures("later")
def test_a_later_process_does_not_read_what_did_not_change(
    settled: Path, tmp_path: Path, reads: list[str]
) -> None:
    assert [hashed(settled, tmp_path / "cache") for _ in range(3)] == [ABC] * 3
    assert reads == ["settled"]


@pytest.mark.usefixtures("later")
def test_rehash_reads_once_more_and_remembers_anew(
    settled: Path, tmp_path: Path, reads: list[str]
) -> None:
    hashed(settled, tmp_path / "cache")
    lines = (tmp_path / "cache" / "files.jsonl").read_text().replace(ABC, EMPTY)
    (tmp_path / "cache" / "files.jsonl").write_text(lines)
    assert hashed(settled, tmp_path / "cache") == EMPTY
    assert hashed(settled, tmp_path / "cache", rehash=True) == ABC
    assert hashed(settled, tmp_path / "cache") == ABC
    assert reads == ["settled"] * 2


def test_a_file_that_has_just_been_written_is_not_remembered(
    settled: Path, tmp_path: Path, reads: list[str]
) -> None:
    """It could change once more within the resolution of its time."""
    assert [hashed(settled, tmp_path / "cache") for _ in range(2)] == [ABC] * 2
    assert reads == ["settled"] * 2


@pytest.mark.usefixtures("later")
@pytest.mark.parametrize("how", ["written", "time put back", "another file"])
def test_a_byte_that_changed_is_seen(settled: Path, tmp_path: Path, how: str) -> None:
    """With the time of modification put back as well: the time of the change itself stays."""
    before = settled.stat()
    assert hashed(settled, tmp_path / "cache") == ABC
    time.sleep(0.01)
    changed = settled.with_name("other") if how == "another file" else settled
    changed.write_bytes(b"abd")
    if how != "written":
        os.utime(changed, ns=(before.st_atime_ns, before.st_mtime_ns))
    changed.replace(settled)
    assert hashed(settled, tmp_path / "cache") == hashlib.sha256(b"abd").hexdigest()


@pytest.mark.usefixtures("later")
@pytest.mark.parametrize(
    "damage",
    [
        b"\x00\xff\xfe",
        b"",
        b"{}",
        b"[" * 100_000,
        b'[["a"], [1], "b"]\n[1, 2, 3]\n["a", 1, "b"]\nnull\n["a", [], 7]',
        b'["half a li',
    ],
)
def test_a_damaged_list_is_passed_over_and_goes_on(
    settled: Path, tmp_path: Path, reads: list[str], damage: bytes
) -> None:
    (tmp_path / "cache").mkdir()
    (tmp_path / "cache" / "files.jsonl").write_bytes(damage)
    assert [hashed(settled, tmp_path / "cache") for _ in range(2)] == [ABC] * 2
    assert reads == ["settled"]


@pytest.mark.usefixtures("later")
def test_a_digest_in_the_list_that_is_none_is_not_believed(settled: Path, tmp_path: Path) -> None:
    hashed(settled, tmp_path / "cache")
    lines = (tmp_path / "cache" / "files.jsonl").read_text()
    for bad in (ABC[:-1], ABC[:-1] + "g", ABC.upper()):
        (tmp_path / "cache" / "files.jsonl").write_text(lines.replace(ABC, bad))
        assert hashed(settled, tmp_path / "cache") == ABC


@pytest.mark.usefixtures("later")
def test_a_folder_that_cannot_be_written_costs_time_only(
    settled: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "taken").write_text("a file where the folder should be")
    assert hashed(settled, tmp_path / "taken") == ABC
    opened = Path.open

    def full(self: Path, mode: str = "r", *args: Any, **kwargs: Any) -> Any:
        if mode == "ab":
            raise OSError(errno.ENOSPC, "No space left on device")
        return opened(self, mode, *args, **kwargs)

    monkeypatch.setattr(Path, "open", full)
    assert [hashed(settled, tmp_path / "cache") for _ in range(2)] == [ABC] * 2


def test_processes_that_share_a_list(tmp_path: Path) -> None:
    """Each adds what it reads; none loses a line of another."""
    files = [tmp_path / f"file-{i}" for i in range(40)]
    for path in files:
        path.write_bytes(path.name.encode())
        os.utime(path, ns=(0, 0))
    script = (
        "import sys; from pathlib import Path; from pytest_ane.mlprogram import digests\n"
        "digests._RACY = -(10**10)\n"
        "with digests.remembered(Path(sys.argv[1])):\n"
        "    print(*(digests.file_digest(Path(p)) for p in sys.argv[2:]))\n"
    )
    command = [sys.executable, "-c", script, str(tmp_path / "cache")]
    shares = [files[:30], files[10:], files[::-1]]
    running = [
        subprocess.Popen([*command, *map(str, share)], stdout=subprocess.PIPE) for share in shares
    ]
    wanted = {path: hashlib.sha256(path.name.encode()).hexdigest() for path in files}
    for process, share in zip(running, shares, strict=True):
        assert process.communicate()[0].split() == [wanted[path].encode() for path in share]
    lines = (tmp_path / "cache" / "files.jsonl").read_text().split("\n")[1:]
    assert {Path(json.loads(line)[0]): json.loads(line)[2] for line in lines} == wanted


@pytest.mark.usefixtures("later")
def test_a_long_list_is_cleared_of_files_that_are_gone(
    settled: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, reads: list[str]
) -> None:
    gone = tmp_path / "gone"
    gone.write_bytes(b"gone")
    hashed(gone, tmp_path / "cache")
    hashed(settled, tmp_path / "cache")
    gone.unlink()
    monkeypatch.setattr("pytest_ane.mlprogram.digests._LONGEST", 100)
    assert hashed(settled, tmp_path / "cache") == ABC
    (found,) = (tmp_path / "cache").iterdir()
    assert found.read_text().count("\n") == 1
    assert reads == ["gone", "settled"]
