"""The command line as a whole: version, help, exit codes."""

from __future__ import annotations

import json
import math
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import pytest

from pytest_ane import __version__
from pytest_ane.cli import COMMANDS, help_of, load, main, parser
from pytest_ane.cli.output import to_json
from tests.packages import save_conv


@dataclass(frozen=True)
class Record:
    path: Path
    values: tuple[float, ...]
    more: Mapping[str, Any]


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


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_a_sentence_an_example_and_json(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    command = load(name)
    assert re.fullmatch(r"[a-z].*[^.]", help_of(name))
    line = command.EXAMPLE.replace("python -I -m pytest_ane.cli", "pytest-ane")
    program, *words = shlex.split(line.partition(" > ")[0])
    assert (program, words[0]) == ("pytest-ane", name)
    assert parser().parse_args(words).run is command.run
    assert parser(name).parse_args([*words, "--json"]).json
    with pytest.raises(SystemExit, match="0"):
        main([name, "--help"])
    out = capsys.readouterr().out
    assert command.EXAMPLE in out
    assert "--json" in out


@pytest.mark.parametrize("name", COMMANDS)
def test_options_have_their_names_of_pytest_too(name: str) -> None:
    """`--manifest` and `--ane-manifest` are one option, wherever there is one."""
    subparsers = next(a for a in parser()._actions if a.dest == "command")
    assert isinstance(subparsers.choices, dict)
    for action in subparsers.choices[name]._actions:
        names = set(action.option_strings)
        for option in ("manifest", "cache", "shards", "evidence", "backend", "compute-units"):
            both = {f"--{option}", f"--ane-{option}"}
            assert names in (both, names - both)


def _run(*arguments: str, stdout: Any = subprocess.PIPE, **more: Any) -> tuple[int, str]:
    """A command in a process of its own: exit code and stderr."""
    command = [sys.executable, "-m", "pytest_ane.cli", *arguments]
    done = subprocess.run(command, stdout=stdout, stderr=subprocess.PIPE, check=False, **more)
    return done.returncode, done.stderr.decode()


@pytest.mark.drawn
@pytest.mark.skipif(not Path("/dev/full").exists(), reason="Linux has a device that is full")
@pytest.mark.parametrize("arguments", ["--help", "init --schema", "init --schema --json"])
def test_a_full_disk_is_one_sentence(arguments: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PYTHONUNBUFFERED", raising=False)
    with Path("/dev/full").open("w") as full:
        code, err = _run(*arguments.split(), stdout=full)
    said = "pytest-ane: Standard output cannot be written: No space left on device.\n"
    assert (code, err) == (1, said)


@pytest.mark.drawn
@pytest.mark.parametrize("more", [(), ("--json",)])
def test_no_standard_output_is_no_error(more: tuple[str, ...]) -> None:
    assert _run("init", "--schema", *more, stdout=None, preexec_fn=lambda: os.close(1)) == (0, "")


def test_letters_that_the_terminal_lacks_are_escapes(tmp_path: Path) -> None:
    environment = {**os.environ, "PYTHONIOENCODING": "ascii"}
    assert _run("init", str(tmp_path / "größe"), env=environment) == (0, "")


@pytest.mark.parametrize(
    "arguments", [["init", "--schema"], ["cache", "list", "--ane-cache", "cache"]]
)
def test_a_reader_that_has_seen_enough_is_no_success(
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
    assert process.returncode == 141  # As SIGPIPE ends a program: what was asked is not done.


def test_the_command_line_starts_without_heavy_modules() -> None:
    code = (
        "import sys\nfrom pytest_ane.cli import main\n"
        "try:\n    main(['--help'])\nexcept SystemExit:\n    pass\n"
        "heavy = 'torch', 'coremltools', 'numpy', 'pydantic', 'pytest_ane.tools.drift'\n"
        "print(*(m for m in heavy if m in sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.endswith("\n\n")


def test_json_of_records_and_of_numbers_that_json_has_not() -> None:
    record = Record(
        Path("a\udcff"), (1.5, math.nan, -math.inf), MappingProxyType({"n": np.int8(3)})
    )
    text = to_json({"x": record})
    assert text.isascii()
    assert json.loads(text) == {
        "x": {"path": "a\udcff", "values": [1.5, "NaN", "-Infinity"], "more": {"n": 3}}
    }


def test_sigterm_ends_a_command_cleanly(tmp_path: Path) -> None:
    """Contexts are left, as those of temporary folders."""
    code = (
        "import os, signal, sys, tempfile, time\n"
        "from pytest_ane import cli\n"
        "def execute(options):\n"
        "    with tempfile.TemporaryDirectory() as folder:\n"
        "        print(folder, flush=True)\n"
        "        time.sleep(60)\n"
        "cli.execute = execute\n"
        "sys.exit(cli.main(['init', '--schema']))\n"
    )
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    with subprocess.Popen(
        [sys.executable, "-c", code],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment,
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        folder = process.stdout.readline().decode().strip()
        assert Path(folder).is_dir()
        process.terminate()
        assert process.stderr.read() == b""
    assert process.returncode == 143
    assert list(tmp_path.iterdir()) == []


def test_progress_is_shown_to_people_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    save_conv(package := tmp_path / "conv.mlpackage")
    compress = ["compress", str(package), "--weight-threshold=0", "--granularity=per_tensor", "-o"]
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    assert main([*compress, str(tmp_path / "a.mlpackage"), "--json"]) == 0
    assert capsys.readouterr().err == ""
    assert main([*compress, str(tmp_path / "b.mlpackage")]) == 0
    assert "compressing conv.mlpackage" in capsys.readouterr().err
