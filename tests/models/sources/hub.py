"""A local Hugging Face cache as `huggingface_hub` lays it out: blobs, and snapshots of links."""

from __future__ import annotations

import hashlib
from pathlib import Path

COMMIT = "0123456789abcdef0123456789abcdef01234567"


def write_snapshot(
    cache: Path, hub: str, files: Path, commit: str = COMMIT, ref: str = "main"
) -> Path:
    """A folder's files as the snapshot of a commit that a branch or tag names."""
    repository = cache / f"models--{hub.replace('/', '--')}"
    snapshot = repository / "snapshots" / commit
    (repository / "blobs").mkdir(parents=True, exist_ok=True)
    for file in filter(Path.is_file, files.rglob("*")):
        blob = repository / "blobs" / hashlib.sha256(file.read_bytes()).hexdigest()
        blob.write_bytes(file.read_bytes())
        link = snapshot / file.relative_to(files)
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(blob)
    (repository / "refs").mkdir(exist_ok=True)
    (repository / "refs" / ref).write_text(commit)
    return snapshot
