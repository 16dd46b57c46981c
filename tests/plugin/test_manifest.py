"""`--ane-manifest` and its ini twin."""

from __future__ import annotations

import pytest

from tests.plugin.conftest import Project, refused


@pytest.fixture
def elsewhere(project: Project) -> Project:
    """A manifest of another name in another folder."""
    (project.path / "models").mkdir()
    good = project.workshop.packages["good"]
    text = f'[models.own.shard.good]\nartifact = "{good}"\nreference = "none"\n'
    return project.manifest(text, "models/mine.toml")


def test_the_ini_value_is_relative_to_the_ini_file(
    elsewhere: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    elsewhere.pytester.makeini("[pytest]\nane_manifest = models/mine.toml\n")
    monkeypatch.chdir(elsewhere.path / "models")
    elsewhere.gate().assert_outcomes(passed=3, deselected=1)


def test_the_command_line_wins(elsewhere: Project) -> None:
    elsewhere.pytester.makeini("[pytest]\nane_manifest = absent.toml\n")
    elsewhere.gate("--ane-manifest=models/mine.toml").assert_outcomes(passed=3, deselected=1)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        (None, "shards.toml does not exist; run 'pytest-ane init' to write one, *"),
        ("nbits = = 8", "*shards.toml*: not valid TOML*"),
        ("[models.m]\nfamly = 'llama'", "shards.toml:2: *did you mean 'family'?*"),
        ("", "*shards.toml*models*"),
    ],
)
def test_a_wrong_manifest_is_a_usage_error(
    project: Project, text: str | None, sentence: str
) -> None:
    if text is not None:
        project.manifest(text)
    refused(project.gate(), sentence)
