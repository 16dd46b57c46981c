"""`--co`: lists the gates at once; of sources it reads headers, and of packages nothing."""

from __future__ import annotations

import pytest

from tests.plugin.conftest import Project

IDS = """\
gates/test_compression.py::test_compression[mini:L00]
gates/test_compression.py::test_compression[mini:L01]
gates/test_compression.py::test_compression[mini:head.0]
gates/test_compression.py::test_compression[mini:head.1]
gates/test_fidelity.py::test_fidelity[mini:L00]
gates/test_fidelity.py::test_fidelity[mini:L01]
gates/test_fidelity.py::test_fidelity[mini:head.0]
gates/test_fidelity.py::test_fidelity[mini:head.1]
gates/test_placement.py::test_placement[mini:L00]
gates/test_placement.py::test_placement[mini:L01]
gates/test_placement.py::test_placement[mini:head.0]
gates/test_placement.py::test_placement[mini:head.1]
gates/test_behaviour.py::test_behaviour[mini]

13 tests collected in *
"""


def test_ids_are_short_and_no_weights_are_read(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    def read(*_: object) -> None:
        raise AssertionError("weights were read")

    monkeypatch.setattr("pytest_ane.models.sources._gguf.GGUFSource._dequantize", read)
    project.llama()
    result = project.gate("--co", "-q", "--ane-cache=cache")
    assert result.ret == 0
    result.stdout.fnmatch_lines(
        [line.replace("[", "[[]") for line in IDS.splitlines()], consecutive=True
    )
    assert not (project.path / "cache").exists()


def test_packages_are_not_opened(project: Project) -> None:
    result = project.packages(absent="none").gate("--co", "-q")
    assert result.ret == 0
    result.stdout.fnmatch_lines(["gates/test_placement.py::test_placement[[]own:absent[]]"])


def test_behaviour_is_asked_of_complete_chains_only(project: Project) -> None:
    result = project.llama().gate("--co", "-q", shards="L0*")
    assert result.ret == pytest.ExitCode.OK
    result.stdout.no_fnmatch_line("*test_behaviour*")
    result.stdout.fnmatch_lines(["6/7 tests collected (1 deselected) in *"])


def test_two_models_have_ids_of_their_own(project: Project) -> None:
    own = f'[models.own.shard.L00]\nartifact = "{project.workshop.packages["good"]}"\n'
    project.llama(own + 'reference = "none"\n')
    result = project.gate("--co", "-q", "-k", "placement", shards="L00")
    result.stdout.fnmatch_lines(
        [
            "gates/test_placement.py::test_placement[[]mini:L00[]]",
            "gates/test_placement.py::test_placement[[]own:L00[]]",
        ]
    )
