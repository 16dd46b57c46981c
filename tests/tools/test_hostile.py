"""Hostile texts through the command line's output: every command prints through one place."""

from __future__ import annotations

import argparse
import ast
import contextlib
import io
import json
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings

from pytest_ane import cli
from pytest_ane.cli import main
from pytest_ane.cli.output import Failed, Output, execute
from pytest_ane.mlprogram.errors import AneError, ManifestError, ProgramError
from tests.hostile import HOSTILE, check_lines
from tests.mlprogram.packages import Program

NAMES = ["::error::x", "::stop-commands::x", "##[error]x", "\x1b[2J\n::error::y", "n" * 142_098]


def outputs(text: str, *, as_json: bool) -> list[str]:
    """All that commands print which yield, return or raise a text."""

    def yields(options: argparse.Namespace) -> Output:
        yield text
        return {text: [text]}

    def fails(options: argparse.Namespace) -> Output:
        yield ""
        return Failed(text, {"data": text})

    def raising(kind: type[AneError]) -> Callable[[argparse.Namespace], Output]:
        def run(options: argparse.Namespace) -> Output:
            yield ""
            raise kind(f"x: {text}")

        return run

    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        for run in (yields, fails, raising(ProgramError), raising(ManifestError)):
            execute(argparse.Namespace(run=run, json=as_json))
    return [out.getvalue(), err.getvalue()]


@settings(max_examples=150)
@given(text=HOSTILE)
def test_no_control_and_no_command_is_printed(text: str) -> None:
    for stream in outputs(text, as_json=False):
        check_lines(stream.split("\n"))
    data, errors = outputs(text, as_json=True)
    check_lines(errors.split("\n"))
    check_lines(data.split("\n"), longest=10**7)
    assert data.isascii()


def test_a_text_in_json_is_the_text() -> None:
    data, _ = outputs("##[error]\x1b", as_json=True)
    assert json.JSONDecoder().raw_decode(data)[0] == {"##[error]\x1b": ["##[error]\x1b"]}


def test_commands_print_in_one_place() -> None:
    """`output` and `terminal` alone, whose lines go through the one escape."""
    for file in Path(cli.__path__[0]).glob("*.py"):
        names = {
            ast.unparse(node.func)
            for node in ast.walk(ast.parse(file.read_text(encoding="utf-8")))
            if isinstance(node, ast.Call)
        }
        printing = {"print", "input", "sys.stdout.write", "sys.stderr.write"} & names
        assert not printing or file.stem in ("output", "terminal"), file


def hostile_package(folder: Path, name: str) -> Path:
    """`y = x + w`, all of one hostile name."""
    program = Program()
    program.input(f"{name}x", (2, 3))
    program.const(f"{name}w", [[1.0, 2.0, 3.0]], "FLOAT32")
    program.op("add", f"{name}y", shape=(2, 3), x=f"{name}x", y=f"{name}w")
    program.output(f"{name}y")
    folder.mkdir()
    return program.save(folder)


@pytest.mark.parametrize("name", NAMES, ids=range(len(NAMES)))
def test_commands_on_a_hostile_package(
    name: str, tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    package = str(hostile_package(tmp_path / "one", name))
    other = str(hostile_package(tmp_path / "other", "sound"))
    for words in (
        ["explain", package],
        ["explain", package, "--function", name],
        ["run", package],
        ["run", package, "--inputs", "absent.npz"],
        ["diff", package, package],
        ["diff", package, other],
        ["bound", package],
        ["explain", "--weights", package],
        ["blame", package, other],
        ["golden", "record", package, "--out", "g.safetensors"],
    ):
        with contextlib.suppress(SystemExit):
            main(words)
        for stream in capfd.readouterr():
            # An argument is the person's own, and argparse repeats it.
            if name not in words:
                check_lines(stream.split("\n"))
