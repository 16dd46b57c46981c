"""A repository with the workflow's surroundings: git, and tools that only note their calls."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping
from pathlib import Path

from tests.ci.runner import Runner

CONTEXT = {
    "runner.environment": "github-hosted",
    "github.token": "token-of-the-run",
    "inputs.branch": "feature",
    "github.event.pull_request.number": "7",
    "steps.review.outputs.label != ''": "false",
    "secrets.EVIDENCE_KEY": "a key",
    "secrets.EVIDENCE_PASSWORD": "a password",
}
AS_IT_IS = {"install": ""}
"""The action without its own installation: the python that is there."""
RUN = {
    "GITHUB_RUN_ID": "42",
    "GITHUB_RUN_ATTEMPT": "1",
    "GITHUB_REPOSITORY": "me/mine",
    "GITHUB_SERVER_URL": "https://github.com",
}


def clone(folder: Path, files: Mapping[str, str]) -> tuple[Path, Path]:
    """A clone whose branch `main` has these files and whatever lies there, and its origin."""
    origin, repository = folder / "origin.git", folder / "repository"
    git(folder, "init", "--quiet", "--bare", "--initial-branch=main", str(origin))
    git(folder, "clone", "--quiet", str(origin), str(repository))
    for name, text in files.items():
        (repository / name).parent.mkdir(parents=True, exist_ok=True)
        (repository / name).write_text(text)
    commit(repository)
    return repository, origin


def commit(repository: Path) -> None:
    """Commit everything to `main`."""
    git(repository, "add", ".")
    who = ("-c", "user.name=me", "-c", "user.email=me@example.org")
    git(repository, *who, "commit", "--quiet", "--allow-empty", "--message=first")
    git(repository, "push", "--quiet", "origin", "HEAD:main")


def machine(folder: Path, repository: Path, *path: Path, code: int = 0, **env: str) -> Runner:
    """With tools of GitHub and Sigstore that only note how they were called, in `folder`."""
    return Runner(
        repository,
        {**CONTEXT, **{f"env.{key}": value for key, value in env.items()}},
        path=(fakes(folder, "gh", "cosign", code=code), *path),
        env=RUN,
    )


def fakes(folder: Path, *names: str, code: int = 0) -> Path:
    """A folder of tools that note how they were called."""
    tools = folder / "tools"
    tools.mkdir(exist_ok=True)
    for name in names:
        tool = tools / name
        tool.write_text(f'#!/bin/sh\necho "{name} $*" >> "{folder}/calls.txt"\nexit {code}\n')
        tool.chmod(0o755)
    return tools


def calls(folder: Path) -> list[str]:
    """How they were called, in order."""
    file = folder / "calls.txt"
    return file.read_text().splitlines() if file.exists() else []


def git(folder: Path, *arguments: str) -> str:
    """Run git without the user's configuration."""
    done = subprocess.run(
        ["git", *arguments], cwd=folder, check=True, capture_output=True, text=True,
        env={**os.environ, "GIT_CONFIG_GLOBAL": os.devnull},
    )  # fmt: skip
    return done.stdout
