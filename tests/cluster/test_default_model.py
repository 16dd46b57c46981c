"""The whole default model over a cluster, held against `make gate-all`."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

from pytest_ane.make.cache import default_root
from tests.cluster.conftest import ROOT, Site
from tests.forked import Forge
from tests.gate_all import COMMAND, gate_all

pytestmark = [pytest.mark.cluster, pytest.mark.full]


def figures(file: Path) -> dict[str, list[tuple[str | None, str | None]]]:
    """Properties by test: figures, limits, digests, provenance."""
    cases = ET.parse(file).getroot().iter("testcase")
    return {
        str(case.get("name")): [(p.get("name"), p.get("value")) for p in case.iter("property")]
        for case in cases
    }


def test_every_figure_and_digest(site: Site, forge: Forge, tmp_path: Path) -> None:
    """The references are those that it recorded: float32 sums depend on the number of threads."""
    one_machine = figures(gate_all(forge, ".xml"))
    site.checkout = ROOT
    site.work("plain", builds=2, cache=str(default_root()))
    file = tmp_path / "cluster.xml"
    options = [f"--ane-cluster={site.url}", f"--junitxml={file}"]
    done = forge.run([*COMMAND, *options, f"--ane-cache={tmp_path / 'cache'}"], ROOT)
    assert done.returncode == 0, done.stdout
    assert len(one_machine) == 172
    assert figures(file) == one_machine
    assert not list((tmp_path / "cache" / "artifacts").iterdir())
