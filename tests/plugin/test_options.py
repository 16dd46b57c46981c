"""Every option is one row of a table: its help, its ini twin, and what is refused of it."""

from __future__ import annotations

import pytest

from pytest_ane.mac.testing import Mac, Replayer, Script
from pytest_ane.plugin._options import OPTIONS, Option
from tests.plugin.conftest import Project, refused

TIME, SIZE = "must be a number of seconds or a time *", "must be a number of bytes or a size *"
COSINE = "give a number from -1 to 1, or one for each of *"
BUILDS = "give a number from 1 to 1000."


@pytest.fixture
def good(project: Project) -> Project:
    return project.packages(good="none")


def test_every_option_and_its_twin_are_explained(pytester: pytest.Pytester) -> None:
    text = pytester.runpytest_inprocess("--help").stdout.str()
    for option in OPTIONS:
        assert f"  {option.flag}" in text
        assert (f"  {option.name} (string):" in text) is option.has_twin


NEEDS_VALUES = [o for o in OPTIONS if o.metavar and o.name != "ane_cluster_timeout"]


@pytest.mark.parametrize("option", NEEDS_VALUES, ids=lambda option: option.name)
def test_an_empty_value_is_refused(good: Project, option: Option) -> None:
    """As from an unset variable in a script."""
    given = [f"{option.flag}=", "--ane-backend=coreml"]
    if option.name == "ane_package":
        refused(good.run(*given), "--ane-package is empty; give a value or leave it out.")
        return
    with Replayer(Script(Mac(compiler=""))):
        refused(good.gate(*given), f"{option.flag} is empty; *")


@pytest.mark.parametrize(
    ("name", "value", "says"),
    [
        *(("ane_min_cosine", value, COSINE) for value in (
            "abc", "nan", "1.5", "-2", "inf", ":0.9", "good:", "0.9,", "a:b")),
        *(("ane_builds", value, BUILDS) for value in ("0", "-1", "two", "1001", "1.5", "²")),
        *(("ane_arithmetic", value, "*.") for value in ("fp16", "h13", "typed,M2")),
        *(("ane_blame", value, "give 'always', 'failed' or 'never'.") for value in (
            "yes", "Always")),
        ("ane_memory", "much", SIZE),
        ("ane_time", "soon", TIME),
    ],
)  # fmt: skip
def test_a_wrong_value_is_one_sentence(good: Project, name: str, value: str, says: str) -> None:
    flag = f"--{name.replace('_', '-')}"
    refused(good.gate(f"{flag}={value}"), f"{flag}={value}: {says}")
    good.pytester.makeini(f"[pytest]\n{name} = {value}\n")
    equals = " = " if name == "ane_blame" else "="
    refused(good.gate(), f"{name}{equals}{value}: {says}")


def test_a_wrong_time_of_the_device(good: Project) -> None:
    result = good.gate("--ane-device-timeout=soon")
    refused(result, f"--ane-device-timeout=soon: {TIME}")


@pytest.mark.parametrize(
    ("name", "value", "says"),
    [
        ("ane_unproven", "yes", "give 'fail' or 'allow'."),
        ("ane_backend", "gpu", "give 'auto', 'cpu' or 'coreml'."),
        ("ane_compute_units", "ANE", "give 'ALL', 'CPU_AND_GPU', *"),
    ],
)
def test_a_value_that_is_no_choice(good: Project, name: str, value: str, says: str) -> None:
    flag = f"--{name.replace('_', '-')}"
    result = good.gate(f"{flag}={value}")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines([f"*: argument {flag}: invalid choice: {value!r} *"])
    good.pytester.makeini(f"[pytest]\n{name} = {value}\n")
    refused(good.gate(), f"{name} = {value}: {says}")


@pytest.mark.parametrize(
    ("name", "twin", "shown", "option", "shown_then"),
    [
        ("ane_unproven", "allow", "unproven allowed", "fail", "unproven fails"),
        ("ane_min_cosine", "-1", "min-cosine -1 for all", "0.99", "min-cosine 0.99 for all"),
        ("ane_backend", "coreml", "backend coreml", "cpu", "backend cpu · placement by forecast"),
        ("ane_compute_units", "ALL", "ALL", "CPU_ONLY", "CPU_ONLY"),
        ("ane_cache", "kept/here", "cache *kept/here", "other", "cache *other"),
        ("ane_store", "kept", "store */kept", "moved", "store */moved"),
    ],
)
def test_the_command_line_wins_over_the_ini_file(
    good: Project, name: str, twin: str, shown: str, option: str, shown_then: str
) -> None:
    good.pytester.makeini(f"[pytest]\n{name} = {twin}\n")
    run = ["--ane-shards=all", "--co"]
    run += ["--ane-backend=coreml"] if name == "ane_compute_units" else []
    run += [] if name == "ane_cache" else [f"--ane-cache={good.workshop.cache}"]
    flag = f"--{name.replace('_', '-')}"
    for given, says in (((), shown), ((f"{flag}={option}",), shown_then)):
        with Replayer(Script(Mac(compiler=""))):
            result = good.pytester.runpytest_inprocess(*run, *given)
        result.stdout.fnmatch_lines([f"ane: * · {says}*"])
