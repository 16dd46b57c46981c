"""Packages that people bring: each fault has an effect, right ones are green, some wrong red."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.battery.brought.kind import EFFECT, Flaw, Kind, effect
from tests.battery.brought.run import FORMS, KINDS, Said, judged
from tests.battery.brought.table import page

FLAWS = [(kind, flaw) for kind in KINDS.values() for flaw in kind.flaws]


def test_there_are_enough() -> None:
    stateful = [flaw for kind, flaw in FLAWS if kind.stateful]
    assert len(KINDS) >= 8
    assert len(FLAWS) >= 60
    assert len(stateful) >= 20
    assert len({(kind.name, flaw.name) for kind, flaw in FLAWS}) == len(FLAWS)


def test_the_page_counts() -> None:
    said = [
        Said("block", "", "package", 0, "passed", "", 1.0),
        Said("block", "no mask", "package", 0, "failed", "wrong function: 0.5", 1.0),
        Said("block", "scale missing", "package", 0, "failed", "compression: 0.5", 1.0),
        Said("decoder", "wiped at 16", "package", 0, "passed", "", 1.0),
        Said("decoder", "values fade", "package", 0, "unproven", "a state", 1.0),
    ]
    text = page(said)
    first = "| the right fp16 package as `reference` | {} |"
    assert first.format("4 | 2 | 1 | 1 | 75.0% | 1 of 2") in text
    assert first.format("2 | 0 | 1 | 1 | 50.0% | 0 of 0") in text
    assert "| decoder | wiped at 16 | package |" in text


@pytest.mark.slow
@pytest.mark.drawn
@pytest.mark.parametrize(("kind", "flaw"), FLAWS, ids=[f"{k.name}-{f.name}" for k, f in FLAWS])
def test_effect(kind: Kind, flaw: Flaw) -> None:
    assert effect(kind, flaw) > EFFECT


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("brought")


@pytest.mark.slow
@pytest.mark.drawn
@pytest.mark.parametrize("kind", KINDS)
def test_a_right_package_is_not_red(kind: str, folder: Path) -> None:
    for said in judged(kind, "", [*FORMS], 0, folder):
        assert said.status != "failed", said


@pytest.mark.slow
@pytest.mark.drawn
@pytest.mark.parametrize(
    ("kind", "flaw", "form"),
    [
        ("block", "no mask", "package"),
        ("words", "norm missing", "golden"),
        ("encoder", "causal", "own"),
        ("pictures", "batch norm missing", "both"),
        ("decoder", "keys and values exchanged", "uncompressed"),
        ("conv", "taps reversed", "package"),
        ("recurrence", "answers a call late", "golden"),
        ("chat", "decode without scale", "own"),
    ],
)
def test_a_wrong_package_is(kind: str, flaw: str, form: str, folder: Path) -> None:
    (said,) = judged(kind, flaw, [form], 0, folder)
    assert said.status == "failed", said
