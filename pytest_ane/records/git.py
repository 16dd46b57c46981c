"""What git tells of a folder."""

from __future__ import annotations

import subprocess
from pathlib import Path


def checkout(folder: Path) -> tuple[str, bool]:
    """The commit of a checkout, and whether nothing tracked was changed."""
    commit = git(folder, "rev-parse", "HEAD").strip()
    # One line says the branch; none at all, that git failed.
    status = git(folder, "status", "--porcelain", "--branch", "-uno")
    return commit, bool(commit) and len(status.splitlines()) == 1


def git(folder: Path, *arguments: str, given: str | None = None) -> str:
    """What git prints, `given` its standard input; empty where it fails, or is not there."""
    try:
        done = subprocess.run(
            ["git", *arguments], cwd=folder, capture_output=True, text=True, errors="replace",
            input=given, check=False,
        )  # fmt: skip
    except OSError:
        return ""
    return done.stdout if done.returncode == 0 else ""
