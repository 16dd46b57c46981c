"""Due and judged: whatever makes a gate go missing, the run is red, unless a person said so."""

from __future__ import annotations

import sys

import pytest

from tests.plugin.conftest import Project, refused

MODIFY = "def pytest_collection_modifyitems(config, items):\n"
MARK_ALL = MODIFY + "    import pytest\n    for item in items:\n        item.add_marker({})\n"


def plugin(project: Project, text: str) -> None:
    """Hooks for all tests: those of a conftest.py do not reach the shipped suite."""
    project.pytester.makepyfile(evil=text)
    project.pytester.makeconftest(
        "import evil\ndef pytest_configure(config):\n    config.pluginmanager.register(evil)\n"
    )


@pytest.fixture
def two(project: Project) -> Project:
    """Two shards: six gates are due."""
    return project.packages(good="none", other="none")


def lines(result: pytest.RunResult) -> str:
    return result.stdout.str()


def test_a_whole_run_says_nothing_of_it(two: Project) -> None:
    result = two.gate()
    assert result.ret == 0
    assert "due" not in lines(result)


@pytest.mark.drawn
@pytest.mark.parametrize(
    ("conftest", "reason"),
    [
        (MARK_ALL.format('pytest.mark.skip("later")'), "its test was skipped (later)"),
        (MARK_ALL.format("pytest.mark.skipif(True, reason='later')"), "skipped (later)"),
        (MODIFY + "    items[:] = [i for i in items if 'other' not in i.name]\n", "no test asked"),
        (
            MODIFY
            + "    for i in items:\n        i.own_markers.clear()\n        i.parent.own_markers"
            ".clear()\n",
            "no test asked it",
        ),
        (
            "import pytest\n@pytest.fixture\ndef ane_artifact():\n    pytest.skip('not here')\n",
            "its test was skipped (not here)",
        ),
        ("collect_ignore_glob = ['gates/*', '*suite*', '*gates*']\n", ""),
    ],
)
def test_a_conftest_that_lets_gates_go_missing_is_red(
    two: Project, conftest: str, reason: str
) -> None:
    two.pytester.makeconftest(conftest)
    result = two.gate()
    if not reason:  # The suite is collected all the same.
        assert result.ret == 0
        result.assert_outcomes(passed=6, deselected=1)
        return
    assert result.ret == 1
    result.stdout.fnmatch_lines(["*was due, and not judged: *", "NOT RUN *own:*"])
    assert reason in " ".join(lines(result).split())


@pytest.mark.parametrize(
    ("package", "hook", "says"),
    [
        (
            "good",
            "@pytest.hookimpl(tryfirst=True)\ndef pytest_pyfunc_call(pyfuncitem):\n"
            "    return True\n",
            "its test passed without a verdict",
        ),
        (
            "nan",
            MARK_ALL.format("pytest.mark.xfail"),
            "its verdict is failed, and its test is marked xfail",
        ),
        (
            "nan",
            "@pytest.hookimpl(wrapper=True)\ndef pytest_runtest_makereport(call):\n"
            "    report = yield\n    report.outcome = 'passed'\n    return report\n",
            "its verdict is failed, and its test passed",
        ),
    ],
)
def test_no_hook_hides_a_red_verdict(project: Project, package: str, hook: str, says: str) -> None:
    plugin(project.packages(**{package: "none"}), f"import pytest\n{hook}")
    result = project.gate()
    assert result.ret == 1
    assert says in " ".join(lines(result).split())


@pytest.mark.parametrize(
    "options", ["-k fidelity", "--deselect gates/test_placement.py", "-m cosine"]
)
def test_what_addopts_leaves_out_is_red(two: Project, options: str) -> None:
    two.pytester.makeini(f"[pytest]\naddopts = {options}\n")
    more = () if options.startswith("-m") else ("-m", "gate")
    result = two.run("--ane-shards=all", *more)
    assert result.ret == 1
    assert "placement of own:good was due, and not judged" in lines(result)


def test_collect_only_of_addopts_is_a_usage_error(two: Project) -> None:
    two.pytester.makeini("[pytest]\naddopts = --collect-only\n")
    refused(two.gate(), "--collect-only stands in addopts*command line*")


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (("-k", "fidelity"), "2 of 6 due gates judged, 4 left out by -k 'fidelity'"),
        (("-k", "not good"), "3 of 6 due gates judged, 3 left out by -k 'not good'"),
        (
            ("--deselect", "gates/test_placement.py"),
            "4 of 6 due gates judged, 2 left out by --deselect gates/test_placement.py",
        ),
        (("gates/test_fidelity.py",), "2 of 6 due gates judged, 4 left out by the paths named"),
        (
            ("gates/test_fidelity.py::test_fidelity[own:good]",),
            "1 of 6 due gates judged, 5 left out by the paths named",
        ),
    ],
)
def test_what_the_command_line_leaves_out_is_shown(
    two: Project, options: tuple[str, ...], sentence: str
) -> None:
    result = two.gate(*options)
    assert result.ret == 0
    result.stdout.fnmatch_lines([sentence])


def test_a_mark_of_ones_own_on_the_command_line_may_leave_gates_out(two: Project) -> None:
    two.pytester.makeconftest(
        "import pytest\ndef pytest_configure(config):\n"
        "    config.addinivalue_line('markers', 'slow: slow')\n"
        + MODIFY
        + "    for item in items:\n        if 'other' in item.name:\n"
        "            item.add_marker('slow')\n"
    )
    result = two.run("--ane-shards=all", "-m", "gate and not slow")
    assert result.ret == 0
    result.stdout.fnmatch_lines(["3 of 6 due gates judged, 3 left out by -m 'gate and not slow'"])


def test_no_gate_at_all_is_exit_5(two: Project) -> None:
    two.pytester.makepyfile(test_mine="def test_mine(): pass\n")
    result = two.run("--ane-shards=all", "test_mine.py")
    assert result.ret == 5
    result.stdout.fnmatch_lines(["ane: no gate was judged, 6 left out by the paths named"])


@pytest.mark.drawn
@pytest.mark.parametrize("where", ["pytest_collection_finish", "pytest_runtest_setup"])
def test_an_exit_with_0_is_red(two: Project, where: str) -> None:
    plugin(two, f"import pytest\ndef {where}():\n    pytest.exit('done', 0)\n")
    result = two.gate()
    assert result.ret == 1
    result.stdout.fnmatch_lines(["*was due, and not judged: no test asked it"])


def test_a_lone_gate_of_ones_own_takes_the_place_of_that_one_only(two: Project) -> None:
    from pytest_ane.project.suite import shipped

    text = (shipped() / "test_fidelity.py").read_text()
    (two.path / "gates").mkdir()
    (two.path / "gates" / "test_fidelity.py").write_text(text)
    result = two.gate()
    assert result.ret == 0
    result.assert_outcomes(passed=6, deselected=1)


@pytest.mark.slow
def test_with_xdist_a_skip_is_red_and_a_dead_worker_too(two: Project) -> None:
    plugin(
        two,
        "import os\n" + MODIFY + "    import pytest\n    for item in items:\n"
        "        if 'placement' in item.name:\n            "
        "item.add_marker(pytest.mark.skip('no'))\n"
        "def pytest_runtest_call(item):\n    if 'fidelity' in item.name:\n        os._exit(0)\n",
    )
    cache = f"--ane-cache={two.workshop.cache}"
    command = (sys.executable, "-m", "pytest", cache, "--ane-shards=all", "-m", "gate", "-n", "1")
    result = two.pytester.run(*command)
    assert result.ret == 1
    text = " ".join(lines(result).split())
    assert "placement of own:good was due, and not judged: its test was skipped (no)" in text
    assert text.count("crashed while running") == 2


def test_gaps_are_in_junit_and_reports(two: Project) -> None:
    two.pytester.makeconftest(MARK_ALL.format("pytest.mark.skip('later')"))
    two.gate("--junitxml=j.xml", "--ane-report=r.jsonl")
    assert (two.path / "j.xml").read_text().count("was due, and not judged") >= 6
    assert (two.path / "r.jsonl").read_text().count("due, and not judged") >= 6


def test_a_policy_of_behaviour_that_no_run_can_ask_is_an_error(project: Project) -> None:
    project.llama().replace("L00-L01, head.0-head.1", "L00-L01")
    refused(project.gate(), "mini: policy.behaviour is never asked, *heads to 'shards'*")
    project.packages("[models.own.policy.behaviour]\nmin-top1 = 0.9\n", good="none")
    refused(project.gate(), "*policy.behaviour[]] is never asked: nothing says how*")


def test_what_is_no_verdict_is_one_sentence(two: Project) -> None:
    two.pytester.makepyfile(
        test_mine="import pytest\n@pytest.mark.gate\ndef test_mine(ane_shard, ane_gate):\n"
        "    ane_gate('passed')\n"
    )
    result = two.gate("test_mine.py")
    result.assert_outcomes(failed=2)
    result.stdout.fnmatch_lines(["*ane_gate takes a Verdict, and was given 'passed'."])
