"""A scheduler and workers, each a process of its own, and runs of pytest over them."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
import xml.etree.ElementTree as ET
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.faults import FAULTS, SITE
from tests.forked import Forge
from tests.plugin.projects import LLAMA, make_llama, make_packages
from tests.signals import heed_ctrl_c

ROOT = Path(__file__).parents[2]
WAIT = 90
"""Seconds for what takes a few, on a machine that is busy."""


def until(holds: Callable[[], Any], what: str) -> Any:
    """What `holds` gives, as soon as it is true."""
    end = time.monotonic() + WAIT
    while not (value := holds()):
        assert time.monotonic() < end, f"not within {WAIT} s: {what}"
        time.sleep(0.05)
    return value


@dataclass
class Site:
    """Processes of a cluster on this machine.

    Attributes:
        folder: of logs, process ids, and what was built.
        checkout: where workers find the project.
    """

    folder: Path
    checkout: Path
    url: str = ""
    processes: list[subprocess.Popen[bytes]] = field(default_factory=list)
    environment: dict[str, str] = field(default_factory=dict)

    def schedule(self, *, tls: bool = False) -> subprocess.Popen[bytes]:
        """Start a scheduler."""
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        protocol = "tls" if tls else "tcp"
        self.url = f"{protocol}://127.0.0.1:{port}"
        process = self._start(
            "scheduler", "-m", "dask", "scheduler", "--host", "127.0.0.1", "--port", str(port),
            "--no-dashboard", "--protocol", protocol,
        )  # fmt: skip
        until(lambda: b"Scheduler at" in self.log("scheduler"), "the scheduler")
        return process

    def work(
        self, name: str, *faults: str, builds: int = 1, mac: bool = False, cache: str = "",
    ) -> list[int]:  # fmt: skip
        """Start a machine; the ids of its processes that take tasks, once they are connected."""
        module = "tests.cluster.mac" if mac else "pytest_ane.cli"
        preload = ["--preload", "tests.cluster.mac"] if mac else []
        count = builds + mac
        before = set(self.folder.glob("*.pid"))
        process = self._start(
            name, "-m", module, "worker", self.url, "--builds", str(builds),
            "--cache", cache or str(self.folder / f"cache-{name}"), "--folder", str(self.checkout),
            *preload, "--preload", "tests.cluster.faults", faults=",".join(faults),
        )  # fmt: skip
        until(
            lambda: b"connected to" in self.log(name) or process.poll() is not None,
            f"the machine {name}",
        )
        assert process.poll() is None, self.log(name).decode()
        files = set(self.folder.glob("*.pid")) - before
        assert len(files) == count
        return [int(file.read_text()) for file in sorted(files)]

    def log(self, name: str) -> bytes:
        file = self.folder / f"{name}.log"
        return file.read_bytes() if file.exists() else b""

    def lines(self, name: str) -> list[list[str]]:
        """Of `builds` or `begun`: shard and process id; of `measured`: gate, shard and device."""
        file = self.folder / name
        return [line.split() for line in file.read_text().splitlines()] if file.exists() else []

    def close(self) -> None:
        for process in reversed(self.processes):
            process.terminate()
        for process in reversed(self.processes):
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    def _start(self, name: str, *arguments: str, faults: str = "") -> subprocess.Popen[bytes]:
        with (self.folder / f"{name}.log").open("wb") as log:
            process = subprocess.Popen(
                [sys.executable, *arguments],
                cwd=ROOT,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=os.environ
                | {SITE: str(self.folder), FAULTS: faults, "OMP_NUM_THREADS": "1"}
                | self.environment,
                preexec_fn=heed_ctrl_c,
            )
        self.processes.append(process)
        return process


@dataclass(frozen=True)
class Result:
    """A run's exit code, what it printed, and its tests' properties by node."""

    code: int
    text: str
    properties: dict[str, list[tuple[str, str]]]

    def statuses(self) -> dict[str, str]:
        """`fidelity own:good` and the like, with the verdict's status."""
        facts = map(dict, self.properties.values())
        return {
            f"{fact['ane.gate']} {fact['ane.subject']}": fact["ane.status"]
            for fact in facts
            if "ane.gate" in fact
        }


@dataclass
class Runs:
    """A project, and runs of pytest in it."""

    folder: Path
    packages: dict[str, Path]
    llama: Path
    forge: Forge

    def manifest(self, text: str) -> Runs:
        (self.folder / "shards.toml").write_text(text)
        return self

    def mini(self, more: str = "") -> Runs:
        """Two blocks and a head in two parts, of a family."""
        return self.manifest(LLAMA.format(source=self.llama) + more)

    def change(self, old: str, new: str) -> Runs:
        """Another text in a place of the manifest."""
        text = (self.folder / "shards.toml").read_text()
        assert old in text
        return self.manifest(text.replace(old, new, 1))

    def own(self, more: str = "", **references: str) -> Runs:
        """Packages: `own(good="none", nan="good")` names each one's reference."""
        lines = []
        for name, reference in references.items():
            held = self.packages.get(reference, reference)
            lines += [f"[models.own.shard.{name}]", f'artifact = "{self.packages[name]}"']
            lines += [f'reference = "{held}"', ""]
        return self.manifest("\n".join(lines) + more)

    def arguments(self, *options: str) -> list[str]:
        options = ("--ane-shards=all", *options)
        return [
            "pytest", "-m", "gate", "-p", "no:cacheprovider", f"--rootdir={self.folder}",
            f"--junitxml={self.folder / 'junit.xml'}", f"--ane-cache={self.folder / 'cache'}",
            *options,
        ]  # fmt: skip

    def run(self, *options: str) -> Result:
        (self.folder / "junit.xml").unlink(missing_ok=True)
        done = self.forge.run(self.arguments(*options), self.folder)
        return self.result(done.returncode, done.stdout)

    def start(self, *options: str) -> subprocess.Popen[str]:
        """A run that something will happen to."""
        return subprocess.Popen(
            [sys.executable, "-m", *self.arguments(*options)],
            cwd=self.folder,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            preexec_fn=heed_ctrl_c,
            env=os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)},
        )

    def end(self, process: subprocess.Popen[str]) -> Result:
        text, _ = process.communicate(timeout=WAIT)
        return self.result(process.returncode, text)

    def result(self, code: int, text: str) -> Result:
        assert "Traceback" not in text, text
        file = self.folder / "junit.xml"
        cases = ET.parse(file).getroot().iter("testcase") if file.exists() else ()
        properties = {
            f"{case.get('classname')}::{case.get('name')}": [
                (str(p.get("name")), str(p.get("value"))) for p in case.iter("property")
            ]
            for case in cases
        }
        return Result(code, text, properties)


@pytest.fixture(scope="session")
def parts(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Path], Path]:
    folder = tmp_path_factory.mktemp("parts")
    return make_packages(folder), make_llama(folder / "mini.gguf")


@pytest.fixture(scope="session")
def forge() -> Iterator[Forge]:
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    forge = Forge()
    yield forge
    forge.close()


@pytest.fixture
def runs(tmp_path: Path, parts: tuple[dict[str, Path], Path], forge: Forge) -> Runs:
    folder = tmp_path / "project"
    folder.mkdir()
    return Runs(folder, *parts, forge)


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    """A scheduler without workers."""
    folder = tmp_path / "site"
    folder.mkdir()
    site = Site(folder, tmp_path / "project")
    try:
        site.schedule()
        yield site
    finally:
        site.close()


@pytest.fixture(scope="module")
def everyone(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """Two processes that build, and a replayed Neural Engine that passes for one."""
    folder = tmp_path_factory.mktemp("site")
    site = Site(folder, folder)
    try:
        site.schedule()
        site.work("plain", builds=2)
        site.work("mac", "genuine", builds=0, mac=True)
        yield site
    finally:
        site.close()


def kill(pid: int) -> None:
    os.kill(pid, signal.SIGKILL)
