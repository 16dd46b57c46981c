"""The users' own words lead to gates: `-k residency`, pasted node ids, named paths, no shards."""

from __future__ import annotations

import pytest

from pytest_ane.cli import main
from tests.plugin.conftest import Project, refused


@pytest.mark.parametrize(
    ("arguments", "gates"),
    [
        (("-k", "residency"), "placement"),
        (("-k", "cosine"), "fidelity"),
        (("-k", "palettization"), "compression"),
        (("-m", "residency"), "placement"),
        (("-m", "gate and fidelity"), "fidelity"),
        (("-k", "golden"), "fidelity behaviour"),
        (("-k", "overflow", "--ane-arithmetic=ane"), "hazards"),
    ],
)
def test_gates_by_the_users_words(project: Project, arguments: tuple[str, ...], gates: str) -> None:
    result = project.llama().run("--ane-shards=all", "--co", "-q", *arguments)
    items = [line for line in result.outlines if "::" in line]
    assert {item.partition("::test_")[2].partition("[")[0] for item in items} == set(gates.split())


def test_a_word_selects_no_test_of_the_project(project: Project) -> None:
    project.pytester.makepyfile("def test_own(): pass")
    result = project.packages(good="none").run("--ane-shards=all", "-k", "residency")
    result.assert_outcomes(passed=1, deselected=4)


@pytest.mark.parametrize("own", [True, False])
@pytest.mark.parametrize("woken", [(), ("--ane-shards=all",)])
def test_a_printed_node_id_can_be_pasted(
    project: Project, own: bool, woken: tuple[str, ...]
) -> None:
    if own:
        assert main(["init", str(project.path)]) == 0
    project.packages(good="none", other="none")
    node = "gates/test_placement.py::test_placement[own:good]"
    result = project.run("-v", *woken, node)
    result.assert_outcomes(passed=1)
    result.stdout.fnmatch_lines([f"{node.replace('[', '[[]')} PASSED*".replace("good]", "good[]]")])


def test_node_ids_of_models_and_of_benchmarks(project: Project) -> None:
    nodes = [
        "gates/test_behaviour.py::test_behaviour[mini]",
        "gates/test_throughput.py::test_call[mini:head.0-T1]",
    ]
    result = project.llama().run("--co", "-q", *nodes)
    assert sorted(line for line in result.outlines if "::" in line) == nodes


def test_a_node_id_of_a_gate_of_the_project_s_own(project: Project) -> None:
    project.pytester.makepyfile(
        test_mine="import pytest\n@pytest.mark.gate\ndef test_taste(ane_shard): pass\n"
        "@pytest.mark.parametrize('x', ['a:b'])\ndef test_own(x): pass\n"
    )
    project.packages(good="none", other="none")
    project.run("test_mine.py::test_taste[own:other]").assert_outcomes(passed=1)
    project.run("test_mine.py::test_own[a:b]").assert_outcomes(passed=1)


def test_a_shard_that_a_node_id_does_not_name(project: Project) -> None:
    project.packages(good="none")
    refused(
        project.run("gates/test_placement.py::test_placement[own:goof]"),
        "*test_placement[[]own:goof[]]: shards.toml * own:good*",
    )


@pytest.mark.parametrize("own", [True, False])
@pytest.mark.parametrize("named", ["tests", "tests/test_own.py", "tests/test_own.py::test_own"])
def test_a_named_test_runs_alone(project: Project, named: str, own: bool) -> None:
    if own:
        assert main(["init", str(project.path)]) == 0
    (project.path / "tests").mkdir()
    (project.path / "tests/test_own.py").write_text("def test_own(): pass\n")
    project.packages(good="none").run("--ane-shards=all", named).assert_outcomes(passed=1)


@pytest.mark.parametrize("named", [".", "gates", "gates/test_placement.py", "tests gates"])
def test_the_shipped_gates_can_be_named(project: Project, named: str) -> None:
    (project.path / "tests").mkdir()
    result = project.packages(good="none").run(
        "--ane-shards=all", f"--rootdir={project.path}", *named.split()
    )
    alone = "placement" in named
    result.assert_outcomes(passed=1 if alone else 3, deselected=0 if alone else 1)


# The markers `gate` and `bench`.


def test_they_are_listed_with_their_meaning(pytester: pytest.Pytester) -> None:
    result = pytester.runpytest_inprocess("--markers")
    result.stdout.fnmatch_lines(
        [
            "@pytest.mark.gate: a quality gate of a model shard; runs only with --ane-shards or *",
            "@pytest.mark.bench: a throughput benchmark of a model shard; runs only with --ane-*",
        ]
    )
