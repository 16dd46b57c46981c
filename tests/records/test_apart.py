"""The process that judges: nothing of a pull request runs in it, or is read but what it judges."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import pytest_ane
from pytest_ane.cli import apart
from tests.ci.repository import git
from tests.plugin.conftest import Project, genuine
from tests.records.test_audit import Checkout

__all__ = ["genuine"]
WATCHED = """
import os, sys
root, allowed, words = sys.argv[1], sys.argv[2].split(os.pathsep), sys.argv[3:]
seen = set()
def watch(event, args):
    if event in ("open", "os.listdir", "os.scandir", "import", "exec"):
        of = args[1] if event == "import" else getattr(args[0], "co_filename", args[0])
        if isinstance(of, (str, bytes, os.PathLike)) and os.fsdecode(of)[:1] != "<":
            path = os.path.relpath(os.path.abspath(os.fsdecode(of)), root)
            if path.partition(os.sep)[0] not in (os.pardir, *allowed):
                seen.add(f"{event} {path}")
sys.path.insert(0, %r)
sys.addaudithook(watch)
from pathlib import Path
from pytest_ane.cli import main
code = main(words, Path(root))
print(*sorted(seen), sep="\\n", file=sys.stderr)
sys.exit(code)
"""
"""A judge that tells what it touched below a folder, but for what it is allowed to."""
DATA = ("good.mlpackage", "float32.mlpackage", "shards.toml", "evidence", "run.jsonl", "gates")
CONFIGURATION = {
    ".numba_config.yaml": "cache_dir: /nowhere\n",
    ".coveragerc": "[run]\nplugins = evil\n",
    "pytest.ini": "[pytest]\naddopts = -p evil\n",
    "conftest.py": "raise SystemExit(0)\n",
    "sitecustomize.py": "raise SystemExit(0)\n",
    "usercustomize.py": "raise SystemExit(0)\n",
    "evil.pth": "import evil\n",
    "pyvenv.cfg": "home = /nowhere\n",
    ".netrc": "machine x login y password z\n",
    ".config/dask/dask.yaml": "distributed: {worker: {preload: [evil]}}\n",
    "dask.yaml": "preload: evil\n",
    "matplotlibrc": "backend: module://evil\n",
    "pip.conf": "[global]\nindex-url = http://evil\n",
    "numpy.py": "raise SystemExit(0)\n",
    "yaml.py": "raise SystemExit(0)\n",
    "numba/__init__.py": "raise SystemExit(0)\n",
}
"""What libraries, and Python itself, look for in the folder where they start, or in a home."""


def watched(checkout: Checkout, tmp_path: Path, folder: Path) -> tuple[int, list[str]]:
    """The exit code of a judge that starts in a folder, and what it touched of the checkout."""
    words = ["evidence", "verify-run", "run.jsonl", "--policy-from=base", "--recheck=100%"]
    words += [f"--cache={checkout.project.workshop.cache}"]
    script = WATCHED % str(Path(pytest_ane.__file__).parents[1])
    allowed = os.pathsep.join(DATA)
    command = [sys.executable, "-I", "-c", script, str(checkout.path), allowed, *words]
    home = tmp_path / "home"
    home.mkdir(exist_ok=True)
    done = subprocess.run(
        command, cwd=folder, env=apart.environment(home), capture_output=True, text=True,
        check=False,
    )  # fmt: skip
    return done.returncode, done.stderr.split("\n")


@pytest.mark.slow
def test_only_what_is_judged_is_read(project: Project, tmp_path: Path) -> None:
    checkout = Checkout(project)
    with (checkout.path / "shards.toml").open("a") as file:
        file.write('[models.own]\narithmetic = "ane"\n')  # Of which numba computes the sums.
    checkout.commit("the ANE's arithmetic")
    git(checkout.path, "tag", "--force", "base")
    checkout.run()
    for name, text in CONFIGURATION.items():
        (checkout.path / name).parent.mkdir(parents=True, exist_ok=True)
        (checkout.path / name).write_text(text)
    (tmp_path / "empty").mkdir()
    code, seen = watched(checkout, tmp_path, tmp_path / "empty")
    assert (code, [line for line in seen if line]) == (0, [])
    # As it was before: started in the checkout.
    assert "open .numba_config.yaml" in watched(checkout, tmp_path, checkout.path)[1]


@pytest.mark.parametrize(
    ("line", "apart_"),
    [
        ("evidence verify-run run.jsonl --policy-from base", True),
        ("evidence --manifest x.toml verify-run run.jsonl", True),
        ("evidence verify", True),
        ("evidence list", False),
        ("evidence verify-run --help", False),
        ("explain verify", False),
    ],
)
def test_who_judges(line: str, apart_: bool) -> None:
    assert apart.is_judge(line.split()) is apart_


def test_the_environment_is_made_of_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("NUMBA_CACHE_DIR", "PYTHONPATH", "DASK_CONFIG", "GIT_DIR", "HF_HOME", "HOME"):
        monkeypatch.setenv(name, str(tmp_path / "judged"))
    monkeypatch.setenv("COLUMNS", "123")
    made = apart.environment(tmp_path / "home")
    assert str(tmp_path / "judged") not in "".join(made.values())
    assert (made["HOME"], made["COLUMNS"]) == (str(tmp_path / "home"), "123")
