"""What a newcomer does in the first minutes: the README's commands in order, with the wheel alone.

The wheel is installed into an environment of its own, which finds every other package in the one
that runs the tests. The folder is empty and nothing but the wheel is of this repository.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

import pytest

from tests.docs.pages import ROOT
from tests.docs.sessions import Command, steps

LAST = "pytest --ane-shards=all -m gate --ane-report=report.html"
"""What comes after it searches for causes, or needs a clone, weights, a Mac or a cluster."""
TIMED = re.compile(r"pytest -m bench")
"""Benchmarks of the whole model take as long as all that is run here; tests/plugin has them."""


def commands() -> list[str]:
    """The README's commands from `init` to the report, then those that it begins with.

    Without those that install or time something.
    """
    lines = [step.line for step in steps(ROOT / "README.md") if isinstance(step, Command)]
    first = lines.index("pytest-ane init --no-gates")
    wanted = [*lines[first : lines.index(LAST) + 1], *lines[:first]]
    return [line for line in wanted if not line.startswith("pip ") and not TIMED.match(line)]


@pytest.fixture
def environment(tmp_path: Path) -> Path:
    """The folder of scripts of an environment with the wheel."""
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)]
    subprocess.run(build, cwd=ROOT, check=True, capture_output=True)
    folder = tmp_path / "environment"
    venv.create(folder, symlinks=True)
    scripts = folder / "bin"
    install = [sys.executable, "-m", "pip", "--python", str(scripts / "python"), "install"]
    (wheel,) = tmp_path.glob("*.whl")
    options = ["--quiet", "--no-index", "--no-deps", "--no-compile", "--disable-pip-version-check"]
    subprocess.run([*install, *options, str(wheel)], check=True)
    site = sysconfig.get_path("purelib", "venv", {"base": str(folder)})
    Path(site, "others.pth").write_text(sysconfig.get_path("purelib"))
    script = "import sys, pytest\nsys.exit(pytest.console_main())\n"
    (scripts / "pytest").write_text(f"#!{scripts / 'python'}\n{script}")
    (scripts / "pytest").chmod(0o755)
    return scripts


@pytest.mark.full
def test_the_readme_in_order(environment: Path, tmp_path: Path) -> None:
    project = tmp_path / "project"
    project.mkdir()
    own = {"XDG_CACHE_HOME": str(tmp_path / "cache"), "PATH": f"{environment}:{os.environ['PATH']}"}
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("PYTEST", "PYTHON", "GITHUB"))}

    def run(line: str) -> tuple[int, str]:
        done = subprocess.run(
            shlex.split(line), cwd=project, env=kept | own, text=True, check=False,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )  # fmt: skip
        return done.returncode, done.stdout

    code, where = run("python -c 'import pytest_ane; print(pytest_ane.__file__)'")
    assert (code, Path(where.strip()).is_relative_to(environment.parent)) == (0, True)
    for line in commands():
        if "some.mlpackage" in line:  # A package that somebody has.
            built = next(tmp_path.glob("cache/pytest-ane/artifacts/*/*.mlpackage"))
            shutil.copytree(built, project / "some.mlpackage")
        code, output = run(line)
        assert code == 0, f"{line}: exit code {code}\n{output}"


def test_commands_are_those_of_a_newcomer() -> None:
    assert commands() == [
        "pytest-ane init --no-gates",
        "pytest --ane-shards=L01 -m gate",
        LAST,
        "pytest-ane try some.mlpackage",
        "pytest --ane-shards=all -m gate",
    ]
