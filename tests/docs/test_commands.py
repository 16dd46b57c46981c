"""Every command in the README and the docs is executed, or is one that CI itself runs."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from pytest_ane.cli import parser

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted([ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "benchmarks/README.md",
                *(ROOT / "docs").rglob("*.md")])  # fmt: skip
CI = (ROOT / ".ci/run").read_text()


def commands() -> list[tuple[str, str]]:
    """`(page, command)` of every `$ ` line in a console block; the first page that has it."""
    found: dict[str, str] = {}
    for page in PAGES:
        for block in re.findall(r"```console\n(.*?)```", page.read_text(), re.DOTALL):
            lines = (line for line in block.splitlines() if line.startswith("$ "))
            for line in lines:
                found.setdefault(line[2:].split("  #")[0].split(" # ")[0].strip(), page.name)
    return [(page, command) for command, page in found.items()]


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A user's project: the repository's manifest, a package, a test of its own."""
    from tests.packages import save_conv

    folder = tmp_path_factory.mktemp("project")
    (folder / "shards.toml").write_text((ROOT / "shards.toml").read_text())
    # Manifests alone: a bare `pytest` runs the project's own test, not those of the examples.
    (folder / "examples").mkdir()
    for manifest in (ROOT / "examples").glob("*.toml"):
        (folder / "examples" / manifest.name).symlink_to(manifest)
    (folder / "pytest.ini").write_text("[pytest]\nane_cache = cache\n")
    (folder / "test_own.py").write_text("def test_own():\n    assert True\n")
    save_conv(folder / "some.mlpackage")
    return folder


def test_there_are_commands() -> None:
    assert len(commands()) > 15


@pytest.mark.parametrize(("page", "command"), commands())
def test_command(page: str, command: str, project: Path, tmp_path: Path) -> None:
    program, *arguments = shlex.split(command)
    if program == "make":
        assert f"make {arguments[0]}" in CI, f"{page}: {command} is not run by CI"
        return
    if program == "pip":
        assert arguments[0] == "install"
        return
    if program == "python":
        _script_shows_help(arguments[:2] if arguments[0] == "-m" else arguments[:1])
        return
    if program == "pytest-ane" and _builds(*arguments):
        # They build the whole model: tests/cli runs them on a tiny one, tests/gates on this.
        parser().parse_args(arguments)
        return
    if "--ane-shards" in command and "--co" not in command:
        _selects_shards(arguments, project)
        return
    folder = tmp_path if "init" in arguments else project
    done = _call(program, arguments, folder)
    if arguments == ["--benchmark-compare"]:
        # Nothing is stored here; tests/plugin/test_compare.py compares.
        assert (done.returncode, "--benchmark-autosave" in done.stderr) == (4, True)
        return
    assert done.returncode == 0, f"{page}: {command}\n{done.stdout}{done.stderr}"


def _builds(command: str, *arguments: str) -> bool:
    """Whether a command of `pytest-ane` builds a whole model."""
    if command == "bound":
        return arguments[0].endswith(".toml")
    whole = command in ("drift", "bisect", "calibrate", "speculate")
    return whole and "--times" not in arguments


def _call(program: str, arguments: list[str], folder: Path) -> subprocess.CompletedProcess[str]:
    modules = {"pytest": "pytest", "pytest-ane": "pytest_ane.cli"}
    if ">" in arguments:
        arguments = arguments[: arguments.index(">")]
    command = [sys.executable, "-m", modules[program], *arguments]
    if arguments[:1] in (["bound"], ["cache"], ["evidence"]):
        command += ["--ane-cache", str(folder / "cache")]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)


def _selects_shards(arguments: list[str], project: Path) -> None:
    """The selection works; one block is gated in full, CI gates whole models and examples."""
    whole = next(a for a in arguments if a.startswith("--ane-shards"))
    example = any(a.startswith("--ane-manifest") for a in arguments)
    if whole.endswith("=L01") and "bench" not in arguments and not example:
        done = _call("pytest", arguments, project)
    else:
        done = _call("pytest", [*arguments, "--co", "-q"], project)
    assert done.returncode == 0, done.stdout + done.stderr


def _script_shows_help(script: list[str]) -> None:
    command = [sys.executable, *script, "--help"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
