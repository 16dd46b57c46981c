"""The markers `gate` and `bench`."""

from __future__ import annotations

import pytest

from tests.plugin.conftest import Project


def test_strict_markers_know_them(project: Project) -> None:
    project.pytester.makeini("[pytest]\naddopts = --strict-markers\n")
    project.pytester.makepyfile(
        "import pytest\n"
        "@pytest.mark.gate\n"
        "def test_gate(): pass\n"
        "@pytest.mark.bench\n"
        "def test_bench(): pass\n"
    )
    project.pytester.runpytest_inprocess().assert_outcomes(passed=2)


def test_they_are_listed_with_their_meaning(pytester: pytest.Pytester) -> None:
    result = pytester.runpytest_inprocess("--markers")
    result.stdout.fnmatch_lines(
        [
            "@pytest.mark.gate: a quality gate of a model shard; runs only with --ane-shards or *",
            "@pytest.mark.bench: a throughput benchmark of a model shard; runs only with --ane-*",
        ]
    )
