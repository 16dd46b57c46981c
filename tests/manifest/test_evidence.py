"""Which recorded evidence counts: patterns, ages, and the tables that say so."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pytest

from pytest_ane.manifest import EvidencePolicy
from pytest_ane.manifest.policy import age, takes_in
from tests.manifest.conftest import Complaints, Read

MODEL = """\
[models.m]
family = "llama"
source = { seeded = 1 }
shards = "L00-L03"
"""


@pytest.mark.parametrize(
    ("text", "time"),
    [
        ("90 days", timedelta(days=90)),
        ("1 day", timedelta(days=1)),
        ("12 hours", timedelta(hours=12)),
        ("2weeks", timedelta(weeks=2)),
        (timedelta(days=3), timedelta(days=3)),
    ],
)
def test_ages(text: object, time: timedelta) -> None:
    assert age(text) == time


@pytest.mark.parametrize(
    "value", ["", "90", "0 days", "-1 days", "1.5 days", "3 months", "999999 days", 91, True, None]
)
def test_no_ages(value: object) -> None:
    with pytest.raises(ValueError, match=r'^must be a time such as "90 days", "12 hours" or'):
        age(value)


@pytest.mark.parametrize(
    ("pattern", "text", "taken"),
    [
        ("Apple M4*", "Apple M4 Max", True),
        ("Apple M4*", "Apple M4", True),
        ("Apple M4", "Apple M4 Max", False),
        ("Apple M1*", "Apple M10", False),
        ("Apple M? *", "Apple M4 Pro", True),
        ("*", "Apple M4", True),
        ("apple m4", "Apple M4", False),
        ("Apple [M]4", "Apple M4", False),
        ("M4", "Apple M4", False),
        ("Apple M4*", "Apple M4\n", True),
        ("Apple M4", "Apple M4\n", False),
        ("Apple M1 (Virtual)", "Apple M1 (Virtual)", True),
        ("Apple M1 (Virtual)", "Apple M1", False),
    ],
)
def test_chips(pattern: str, text: str, taken: bool) -> None:
    assert takes_in(pattern, text) is taken
    assert EvidencePolicy(chips=(pattern,)).takes_chip(text) is taken


@pytest.mark.parametrize("pattern", ["Apple M1*", "Apple*", "*", "Apple M1 (*)", "* 2.50GHz *"])
def test_a_chip_of_a_virtual_machine_is_not_taken_by_accident(pattern: str) -> None:
    for chip in ("Apple M1 (Virtual)", "VirtualApple @ 2.50GHz processor"):
        assert not EvidencePolicy(chips=(pattern,)).takes_chip(chip)


@pytest.mark.parametrize(
    ("pattern", "system", "taken"),
    [
        ("macOS 26", "macOS 26", True),
        ("macOS 26", "macOS 26.1", True),
        ("macOS 26*", "macOS 26.1.2", True),
        ("macOS 26.*", "macOS 26.1", True),
        ("macOS 26.1", "macOS 26.1.2", True),
        ("macOS 26.1", "macOS 26.10", False),
        ("macOS 26*", "macOS 260", False),
        ("macOS 2*", "macOS 26", False),
        ("macOS *", "macOS 26.1", True),
        ("macOS *", "iOS 26.1", False),
        ("macOS 26", "", False),
    ],
)
def test_systems(pattern: str, system: str, taken: bool) -> None:
    assert EvidencePolicy(os=(pattern,)).takes_system(system) is taken


@pytest.mark.parametrize(
    ("system", "named"),
    [
        ("macOS 27", "macOS 27"),
        ("macOS 27.0", "macOS 27"),
        ("macOS 27.0.1", "macOS 27"),
        ("macOS 26.1.2", "macOS 26.1"),
        ("macOS 270", ""),
        ("macOS 26.10", ""),
        ("iOS 27", ""),
        ("", ""),
    ],
)
def test_which_system_a_machine_stands_for(system: str, named: str) -> None:
    assert EvidencePolicy(systems=("macOS 26.1", "macOS 27")).system_of(system) == named
    assert EvidencePolicy().system_of(system) == ""


def test_layers(read: Read, tmp_path: Path) -> None:
    (tmp_path / "a.pub").touch()
    manifest = read(
        MODEL
        + "[models.m.policy]\nevidence = { os = ['macOS 26'], max-age = '90 days' }\n"
        + "fidelity.require = 'device'\nplacement.require = 'plan'\n"
        + "[models.m.shard.'L0[0-1]'.policy.evidence]\nmax-age = '1 day'\nsigners = ['a.pub']\n"
    )
    first, last = manifest.shard("m:L00").policy, manifest.shard("m:L03").policy
    assert last.evidence == EvidencePolicy(os=("macOS 26",), max_age=timedelta(days=90))
    assert first.evidence.max_age == timedelta(days=1)
    assert (first.evidence.os, first.evidence.signers) == (("macOS 26",), (tmp_path / "a.pub",))
    assert manifest.model_of("m").policy.evidence == last.evidence
    required = [g for g in ("placement", "fidelity", "behaviour") if last.requires_evidence(g)]
    assert required == ["placement", "fidelity"]
    assert not last.requires_evidence("compression")


def test_a_signer_that_is_not_there(complaints: Complaints, tmp_path: Path) -> None:
    (tmp_path / "keys").mkdir()
    lines = complaints(
        MODEL
        + "[models.m.policy.evidence]\nsigners = ['lab.pub']\n"
        + "[models.m.shard.'L*'.policy.evidence]\nsigners = ['keys']\n"
    )
    end = "which is no file; put the signer's public key (PEM) there."
    assert [line.rpartition("] ")[2] for line in lines] == [
        f"'signers' names {tmp_path / name}, {end}" for name in ("lab.pub", "keys")
    ]
    assert [line.split(":")[1] for line in lines] == ["6", "8"]


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("policy.evidence.chips = []", "chips = []: is empty and would accept nothing; leave it"),
        ("policy.evidence.os = ['Tahoe']", 'os[0] = "Tahoe": must be a system such as'),
        ("policy.evidence.systems = ['macOS *']", '"macOS *": must be a system such as'),
        ("policy.evidence.systems = []", "systems = []: is empty and would accept nothing"),
        ("policy.evidence.compute-units = ['NPU']", "must be 'ALL', 'CPU_AND_GPU'"),
        ("policy.evidence.max-age = 90", "max-age = 90: must be a time such as"),
        ("policy.fidelity.require = 'plan'", "must be 'any' or 'device'"),
        ("policy.placement.require = 'device'", "must be 'forecast', 'predicted' or 'plan'"),
        ("policy.chips = ['a']", "it belongs in another table"),
    ],
)  # fmt: skip
def test_messages(complaints: Complaints, line: str, says: str) -> None:
    (problem,) = complaints(MODEL + line)
    assert says in problem
