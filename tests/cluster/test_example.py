"""The commands of examples/cluster, as they stand there but for the port."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from tests.cluster.conftest import ROOT, Runs, Site, until

pytestmark = [pytest.mark.cluster, pytest.mark.drawn]
PAGE = ROOT / "examples/cluster/README.md"


def commands(url: str, folder: Path) -> list[list[str]]:
    """Words of each, with this test's scheduler and folder."""
    fences = re.findall(r"^```sh\n(.*?)^```$", PAGE.read_text(), re.DOTALL | re.MULTILINE)
    text = "".join(fences).replace("tcp://127.0.0.1:8786", url)
    return [shlex.split(line) for line in text.replace("build/cluster", str(folder)).splitlines()]


def test_the_commands(site: Site, runs: Runs) -> None:
    scheduler, *workers, run = commands(site.url, site.folder)
    assert scheduler == ["dask", "scheduler", "--host", "127.0.0.1"]
    assert [worker[:3] for worker in workers] == 3 * [["pytest-ane", "worker", site.url]]
    for number, (_, *arguments) in enumerate(workers):
        module = "tests.cluster.mac" if "0" in arguments else "pytest_ane.cli"
        more = ["--preload", module] if "0" in arguments else []
        name = f"worker-{number}"
        site._start(name, "-m", module, *arguments, *more)
        until(lambda name=name: b"connected to" in site.log(name), name)  # type: ignore[misc]
    done = runs.forge.run([*run, "-p", "no:cacheprovider", f"--ane-cache={runs.folder}"], ROOT)
    assert done.returncode == 0, done.stdout
    assert "ane: 3 workers on 1 host, 1 of them for a Neural Engine" in done.stdout
    assert "10 gates: " in done.stdout
