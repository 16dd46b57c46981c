"""The whole default model over a cluster, held against `make gate-all`."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

from pytest_ane.build.cache import default_root
from tests.cluster.conftest import ROOT, Site
from tests.forked import Forge

pytestmark = [pytest.mark.cluster]
ALONE = ROOT / "build/gate-all.xml"
"""What `make gate-all` leaves."""
COMMAND = ["pytest", "--ane-shards=all", "-m", "gate", "-p", "no:cacheprovider"]


def figures(file: Path) -> dict[str, list[tuple[str | None, str | None]]]:
    """Properties by test: figures, limits, digests, provenance."""
    cases = ET.parse(file).getroot().iter("testcase")
    return {
        str(case.get("name")): [(p.get("name"), p.get("value")) for p in case.iter("property")]
        for case in cases
    }


def _is_of_today() -> bool:
    """Whether it was made by the code that is tested."""
    code = max(file.stat().st_mtime for file in (ROOT / "pytest_ane").rglob("*.py"))
    return ALONE.exists() and ALONE.stat().st_mtime > code


def test_every_figure_and_digest(site: Site, forge: Forge, tmp_path: Path) -> None:
    """The references are those that it recorded: float32 sums depend on the number of threads."""
    if not _is_of_today():
        done = forge.run([*COMMAND, f"--junitxml={ALONE}"], ROOT)
        assert done.returncode == 0, done.stdout
    site.checkout = ROOT
    site.work("plain", builds=2, cache=str(default_root()))
    file = tmp_path / "cluster.xml"
    options = [f"--ane-cluster={site.url}", f"--junitxml={file}"]
    done = forge.run([*COMMAND, *options, f"--ane-cache={tmp_path / 'cache'}"], ROOT)
    assert done.returncode == 0, done.stdout
    alone, spread = figures(ALONE), figures(file)
    assert len(alone) == 137
    assert spread == alone
    assert not list((tmp_path / "cache" / "artifacts").iterdir())
