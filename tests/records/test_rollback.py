"""An older record in a newer one's place: still of these bytes, and yet no longer the latest."""

from __future__ import annotations

import shutil

import pytest

from pytest_ane.mac._replay import Replayer
from pytest_ane.mac._script import Script
from tests.plugin.conftest import genuine
from tests.records.test_audit import Checkout, add, checkout, git

__all__ = ["checkout", "genuine"]
RECORD = ("--ane-backend=coreml", "--ane-record=all", "-k", "placement")


@pytest.fixture
def recorded(
    checkout: Checkout,
    genuine: None,
    monkeypatch: pytest.MonkeyPatch,
    request: pytest.FixtureRequest,
) -> Checkout:
    """Two records of a plan, the second one in the base; a parameter adds to the policy."""
    monkeypatch.delenv("CI", raising=False)
    (checkout.path / ".gitignore").write_text("run.jsonl\n__pycache__\n.pytest_cache\n")
    add(checkout.path / "shards.toml", '[models.own.policy.placement]\nrequire = "plan"\n')
    add(checkout.path / "shards.toml", getattr(request, "param", ""))
    with Replayer(Script()):
        checkout.project.gate(*RECORD)
        shutil.copytree(checkout.path / "evidence", checkout.path / "older")
        checkout.project.gate(*RECORD)
    checkout.commit("evidence")
    git(checkout.path, "tag", "--force", "base")
    return checkout


@pytest.mark.slow
def test_the_latest_record_passes(recorded: Checkout) -> None:
    assert recorded.run("--ane-backend=cpu").ret == 0
    assert recorded.complaints() == []


def test_an_older_record_is_named(recorded: Checkout) -> None:
    name = "own/good.placement.json"
    shutil.copy(recorded.path / "older" / name, recorded.path / "evidence" / name)
    recorded.commit("older")
    assert recorded.run("--ane-backend=cpu").ret == 0
    assert recorded.complaints() == [
        "placement: its evidence was rolled back: record 1 stands in place of record 2"
    ]


@pytest.mark.parametrize(
    "recorded", ['[models.own.policy.evidence]\nsystems = ["macOS 26"]\n'], indirect=True
)
def test_an_older_record_of_one_of_several_systems_is_named(recorded: Checkout) -> None:
    name = "own/good.placement@macos-26.json"
    shutil.copy(recorded.path / "older" / name, recorded.path / "evidence" / name)
    recorded.commit("older")
    assert recorded.run("--ane-backend=cpu").ret == 0
    assert recorded.complaints() == [
        "placement: its evidence was rolled back: record 1 stands in place of record 2"
    ]
