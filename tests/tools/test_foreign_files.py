"""Nothing of the user's is deleted or changed, whatever folder a command is given."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import shutil
import tempfile
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from pytest_ane.cli import main
from pytest_ane.make import Cache
from pytest_ane.make.disk import KINDS
from pytest_ane.mlprogram.errors import CacheError
from pytest_ane.project.progress import RunFolder
from tests.records.makers import record

KEY, RUN, MINE = "a" * 64, f"run-{'0' * 32}", "b" * 64

NAMES = [
    *KINDS, "tmp", "locks", "digests", "recommend", "tokens", "evidence", "m", "CACHEDIR.TAG",
    "thesis", "release-1.0", "package.json", "Manifest.json", "shards.toml",
    "L00.placement.json", "L00.placement.json.dsse.json", "L00.placement.json.sigstore.json",
    "behaviour.json", "web",
    KEY, KEY[1:], f"{KEY}a", KEY.upper(), f"{KEY}-1", f"{KEY}-x", f"{KEY}.old", f"{KEY}\n",
    f"artifacts-{KEY}", f"artifacts-{KEY[1:]}", f"artifacts-{KEY}.removed", f"weights-{KEY}",
    RUN, RUN[:-1], f"{RUN}.lock.bak", "run-1.lock", "use-1.lock", "slot.lock", ".write-",
    ".write-x", f"OWN-artifacts-{KEY}-thesis", "OWN-notes-abcdefgh",
    f"OWN-artifacts-{KEY}-abcdefgh.txt",
]  # fmt: skip
OURS = {*((kind, key) for kind in KINDS for key in (KEY, f"{KEY}-1")),
        ("tmp", f"artifacts-{KEY}"), ("tmp", RUN)}  # fmt: skip
"""Names that are ours in a cache, and nothing elsewhere."""
RECORD = record("placement").to_json().encode()


def envelope(payload: bytes) -> bytes:
    data = {
        "payload": base64.b64encode(payload).decode(),
        "payloadType": "application/vnd.in-toto+json",
        "signatures": [{"sig": "AAAA"}],
    }
    return json.dumps(data).encode()


CONTENTS: list[bytes | None] = [
    b"", b"{}", b"\xff\0", b'{"name": "web", "version": "1.0.0"}', b'{"_type": 1, "predicate": {}}',
    RECORD[:-20], RECORD.replace(b"M4", b"M5"),
    RECORD.replace(b'"format": 1', b'"format": 2'), b'{"format": 1, "gate": "placement"}',
    envelope(b'{"name": "mine"}'), envelope(RECORD[:-20]),
    envelope(RECORD), None,
]  # fmt: skip
"""Of files; `None` stands for a link to a folder outside."""
Files = list[tuple[tuple[str, ...], bytes | None]]
TREES = st.lists(
    st.tuples(
        st.lists(st.sampled_from(NAMES), min_size=1, max_size=3).map(tuple),
        st.sampled_from(CONTENTS),
    ),
    max_size=12,
)


def plant(root: Path, files: Files, outside: Path) -> None:
    """Write what a person has in a folder; what does not fit together is left out.

    `OWN` stands for how a build's temporary files are called by the path of its cache.
    """
    own = f"pytest-ane-{hashlib.sha256(os.fsencode(root)).hexdigest()[:12]}"
    for parts, content in files:
        path = root.joinpath(*(part.replace("OWN", own) for part in parts))
        with suppress(OSError):
            if any(parent.is_symlink() for parent in path.parents):
                continue
            path.parent.mkdir(parents=True, exist_ok=True)
            if content is not None:
                path.write_bytes(content)
            else:
                with suppress(FileNotFoundError):
                    path.rmdir()  # A folder of the cache may be a link as well.
                path.symlink_to(outside, target_is_directory=True)


def contents(*roots: Path) -> dict[Path, object]:
    """All files by their bytes and links by their targets."""
    found: dict[Path, object] = {}
    for path in (path for root in roots for path in root.rglob("*")):
        if path.is_symlink():
            found[path] = path.readlink()
        elif path.is_file():
            found[path] = path.read_bytes()
    return found


@pytest.mark.slow
@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@example(files=[(("tmp", "thesis"), b"")], used_before=False)
@example(files=[(("artifacts", "release-1.0"), b"")], used_before=True)
@example(files=[(("artifacts", KEY, "web"), b"")], used_before=False)
@example(files=[(("artifacts",), None), (("tmp",), None), (("web",), None)], used_before=True)
@given(files=TREES, used_before=st.booleans())
def test_no_command_touches_foreign_files(
    files: Files, used_before: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root, outside = tmp_path / "tree", tmp_path / "outside"
    shutil.rmtree(root, ignore_errors=True)
    root.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(root))
    for name in (KEY, f"artifacts-{KEY}", RUN):
        (outside / name).mkdir(parents=True, exist_ok=True)
        (outside / name / "file").touch()
    (outside / "L00.placement.json").write_bytes(RECORD)
    if used_before:
        Cache(root)
        files = [(parts, content) for parts, content in files if parts[:2] not in OURS]
    plant(root, files, outside)
    before = contents(root, outside)
    run_commands(root, tmp_path)
    after = contents(root, outside)
    assert {path: after.get(path) for path in before} == before


def run_commands(root: Path, folder: Path) -> None:
    """A run's sweep, `cache prune` and `evidence prune`; what is ours is gone after them."""
    manifest = folder / "shards.toml"
    manifest.write_text('[models.m.shard.L00]\nartifact = "L00.mlpackage"\nreference = "none"\n')
    prune = ["prune", "--yes", "--ane-cache"]
    try:
        cache = Cache(root)
    except CacheError:
        assert main(["cache", *prune, str(root)]) == 1
    else:
        mine = root / "artifacts" / MINE
        linked = any((root / name).is_symlink() for name in ("artifacts", "locks", "tmp"))
        if not linked:
            mine.mkdir()
            (mine / "file").write_text("built")
        with RunFolder(cache, "1" * 32).kept():
            cache.sweep()
        assert main(["cache", *prune, str(root)]) == 0
        assert not mine.exists()
    options = [*prune, str(folder / "cache"), "--ane-manifest", str(manifest)]
    for place in (root, root / "evidence"):
        ours = place / "gone" / "L01.placement.json"
        with suppress(OSError):
            ours.parent.mkdir(parents=True)
            ours.write_bytes(RECORD)
        assert main(["evidence", *options, "--ane-evidence", str(place)]) == 0
        assert not ours.exists()
