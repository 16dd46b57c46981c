"""The command line as a whole: version, help, exit codes."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from pytest_ane import __version__
from pytest_ane.cli import main


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="0"):
        main(["--version"])
    assert capsys.readouterr().out == f"{__version__}\n"


@pytest.mark.parametrize("arguments", [[], ["nonsense"], ["cache", "burn"], ["explain"]])
def test_what_is_no_command_exits_with_2_and_the_usage(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(arguments)
    assert capsys.readouterr().err.startswith("usage: pytest-ane")


def test_help_names_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="0"):
        main(["--help"])
    out = capsys.readouterr().out
    assert all(f"\n    {command} " in out for command in ("init", "schema", "cache", "explain"))


@pytest.mark.parametrize("arguments", [["schema"], ["cache", "list", "--ane-cache", "cache"]])
def test_a_reader_that_has_seen_enough_is_no_error(
    arguments: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PYTHONUNBUFFERED", raising=False)
    monkeypatch.chdir(tmp_path)
    command = [sys.executable, "-m", "pytest_ane.cli", *arguments]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        assert process.stderr.read() == b""
    assert process.returncode == 0


def test_the_command_line_starts_without_heavy_modules() -> None:
    code = (
        "import sys, pytest_ane.cli\n"
        "print(*(m for m in ('torch', 'coremltools', 'numpy', 'pydantic') if m in sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "\n"
