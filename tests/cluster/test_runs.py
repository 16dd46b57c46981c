"""Runs over a cluster: the verdicts of one machine, and what the person sees of the workers."""

from __future__ import annotations

import json
import signal

import pytest

from tests.cluster.conftest import Result, Runs, Site, until

pytestmark = [pytest.mark.cluster, pytest.mark.drawn]


def test_every_figure_is_that_of_one_machine(everyone: Site, runs: Runs) -> None:
    here = runs.mini().run()
    there = runs.run(f"--ane-cluster={everyone.url}", f"--ane-cache={runs.folder / 'other'}")
    assert (here.code, there.code) == (0, 0), there.text
    assert len(here.properties) == 13
    assert there.properties == here.properties
    # Nothing but the workers built, and each shard once.
    assert sorted(shard for shard, _ in everyone.lines("builds")) == [
        "mini:L00", "mini:L01", "mini:head.0", "mini:head.1",
    ]  # fmt: skip
    assert not list((runs.folder / "other" / "artifacts").iterdir())


def test_what_is_red_is_as_red_as_on_one_machine(everyone: Site, runs: Runs) -> None:
    runs.own(good="none", nan="none", ineligible="good")
    here, there = runs.run(), runs.run(f"--ane-cluster={everyone.url}")
    assert here.code == there.code == 1
    assert there.properties == here.properties
    assert {"fidelity own:nan", "placement own:ineligible"} <= {
        gate for gate, status in there.statuses().items() if status == "failed"
    }


def test_a_device_is_asked_where_the_policy_requires_one(everyone: Site, runs: Runs) -> None:
    runs.own('[models.own.policy.placement]\nrequire = "plan"\n', good="none", other="none")
    first = runs.run(f"--ane-cluster={everyone.url}", "-k", "placement")
    assert first.code == 0, first.text
    assert "evidence: 2 recorded" in first.text
    files = sorted((runs.folder / "evidence" / "own").glob("*.placement.json"))
    assert [file.name for file in files] == ["good.placement.json", "other.placement.json"]
    environment = json.loads(files[0].read_text())["environment"]
    assert environment["backend"] == "coreml"
    assert environment["chip"] == "Apple M4 Max"
    # On one machine that is none of theirs, what was recorded now counts.
    alone = runs.run("-k", "placement")
    assert alone.code == 0
    assert "evidence: 2 verified" in alone.text
    assert _of_verdicts(alone) == _of_verdicts(first)


def test_a_device_need_not_wait_for_pytest(site: Site, runs: Runs) -> None:
    """What tests will ask of it, it does while pytest is at something else."""
    site.work("plain")
    site.work("mac", "genuine", builds=0, mac=True)
    runs.own('[models.own.policy.placement]\nrequire = "plan"\n', good="none", other="none")
    (runs.folder / "conftest.py").write_text(
        "import time\n"
        "from pathlib import Path\n\n"
        f"measured = Path({str(site.folder / 'measured')!r})\n\n"
        "class Hold:\n"
        "    held = []\n"
        "    def pytest_runtest_logreport(self, report):\n"
        "        end = time.monotonic() + 60\n"
        "        while report.when == 'call' and not self.held and time.monotonic() < end:\n"
        "            if 'own:other' in measured.read_text():\n"
        "                self.held.append(report.nodeid.rpartition('/')[2])\n\n"
        "def pytest_configure(config):\n"
        "    config.pluginmanager.register(Hold())\n\n"
        "def pytest_terminal_summary(terminalreporter):\n"
        "    terminalreporter.write_line(f'both measured at {Hold.held}')\n"
    )
    result = runs.run(f"--ane-cluster={site.url}", "-k", "placement")
    assert result.code == 0, result.text
    assert "both measured at ['test_placement.py::test_placement[own:good]']" in result.text
    assert sorted(site.lines("measured")) == [
        ["placement", "own:good", "ANE"], ["placement", "own:other", "ANE"],
    ]  # fmt: skip


def _of_verdicts(result: Result) -> list[dict[str, str]]:
    """Properties but what became of the files."""
    every = (dict(properties) for properties in result.properties.values())
    return [{k: v for k, v in each.items() if k != "ane.evidence.file"} for each in every]


def test_a_stack_is_asked_of_a_device(everyone: Site, runs: Runs) -> None:
    runs.mini().change("min-greedy = 3", 'min-greedy = 3\nrequire = "device"')
    result = runs.run(f"--ane-cluster={everyone.url}", "-k", "behaviour")
    assert result.code == 0, result.text
    assert (runs.folder / "evidence" / "mini" / "behaviour.json").exists()


def test_a_red_canary_keeps_the_others_from_being_built(site: Site, runs: Runs) -> None:
    """Though there is room for them while it is measured."""
    site.work("plain", "dawdle=1", builds=2)
    runs.mini("[models.mini.shard.L00.policy.fidelity]\nmin-cosine = 1.0\n")
    runs.change('family = "llama"', 'family = "llama"\ncanary = ["L00"]')
    result = runs.run(f"--ane-cluster={site.url}")
    assert result.code == 1
    statuses = result.statuses()
    assert statuses["fidelity mini:L00"] == "failed"
    assert statuses["fidelity mini:L01"] == "not run"
    assert {shard for shard, _ in site.lines("builds")} == {"mini:L00"}


BUILDER = """
import torch
from pytest_ane.models.families import Conversion, Port

def build(shard):
    x = Port("x", (1, 16, "T", 1))
    torch.manual_seed({seed})
    return Conversion(torch.nn.Conv2d(16, 16, 1), (x,), (Port("y", x.shape),))
"""
OF_BUILDER = '[models.own]\nbuilder = "small_model:build"\nshards = "ffn"\nmax-tokens = 4\n'


def test_code_that_is_edited_between_two_runs(site: Site, runs: Runs) -> None:
    """A worker that has imported what was there before starts anew."""
    site.work("plain")
    module = runs.manifest(OF_BUILDER).folder / "small_model.py"
    digests = []
    for seed in (1, 2):
        module.write_text(BUILDER.format(seed=seed))
        there = runs.run(f"--ane-cluster={site.url}")
        here = runs.run(f"--ane-cache={runs.folder / 'here'}")
        assert (here.code, there.code) == (0, 0), there.text
        assert there.properties == here.properties
        compression = there.properties["gates.test_compression::test_compression[own:ffn]"]
        digests.append(dict(compression)["ane.provenance.artifact"])
    assert digests[0] != digests[1]


def test_own_fixtures_are_used_where_pytest_runs(everyone: Site, runs: Runs) -> None:
    (runs.folder / "conftest.py").write_text(
        "import os\nimport pytest\n"
        "from pathlib import Path\n\n"
        "@pytest.fixture\n"
        "def ane_cases(ane_shard, ane_artifact, ane_backend):\n"
        "    Path('asked').write_text(str(os.getpid()))\n"
        "    return lambda: []\n"
    )
    result = runs.mini().run(f"--ane-cluster={everyone.url}", "-k", "L01 and fidelity")
    assert (runs.folder / "asked").exists()
    assert result.statuses()["fidelity mini:L01"] != "passed"  # Nothing was compared.


def test_a_gate_of_one_s_own_fetches_the_package(everyone: Site, runs: Runs) -> None:
    (runs.folder / "test_mine.py").write_text(
        "import pytest\n\n"
        "@pytest.mark.gate\n"
        "def test_mine(ane_shard, ane_artifact, ane_program):\n"
        "    assert ane_artifact.path.is_dir()\n"
        "    assert len(ane_artifact.digest) == 64\n"
    )
    result = runs.mini().run(f"--ane-cluster={everyone.url}", "test_mine.py", "-k", "L01")
    assert result.code == 0, result.text
    assert len(list((runs.folder / "cache" / "artifacts").iterdir())) == 1


def test_a_failed_shard_is_explained_by_a_worker(everyone: Site, runs: Runs) -> None:
    runs.mini("[models.mini.shard.L01.policy.fidelity]\nmin-cosine = 1.0\n")
    result = runs.run(f"--ane-cluster={everyone.url}", "-k", "L01 and fidelity")
    assert result.code == 1
    assert "relative error of the contribution on the worst" in result.text
    assert not list((runs.folder / "cache" / "artifacts").iterdir())


def test_ctrl_c_cancels_what_is_queued(site: Site, runs: Runs) -> None:
    site.work("plain", "slow=3")
    process = runs.mini().start(f"--ane-cluster={site.url}")
    until(lambda: site.lines("begun"), "a first build")
    process.send_signal(signal.SIGINT)
    result = runs.end(process)
    assert result.code == 2
    begun = len(site.lines("begun"))
    # The worker finishes what it had begun, and is free for the next run.
    again = runs.run(f"--ane-cluster={site.url}", "-k", "L00 and compression")
    assert again.code == 0
    assert len(site.lines("begun")) == begun + 1
