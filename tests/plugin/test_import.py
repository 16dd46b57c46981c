"""A run without ANE options pays nothing for the plugin; `-p no:ane` switches it off."""

from __future__ import annotations

import json

import pytest

from tests.plugin.conftest import Project
from tests.plugin.test_golden import prompted

HEAVY = ["coremltools", "torch", "numpy", "pydantic", "gguf", "tokenizers"]
HEAVY += ["safetensors", "transformers"]
CONFTEST = f"""
import json, sys
def pytest_unconfigure():
    loaded = [name for name in {HEAVY} if name in sys.modules]
    loaded += [name for name in sys.modules if name.startswith("pytest_ane.")]
    with open("loaded.json", "w") as file:
        json.dump(sorted(loaded), file)
"""
# Other plugins of this environment are none of our business: hypothesis' imports much.
ALONE = ("-p", "no:hypothesispytest", "-p", "no:anyio", "-p", "no:benchmark")


@pytest.mark.parametrize("options", [(), ("--co",)])
def test_nothing_heavy_is_imported(pytester: pytest.Pytester, options: tuple[str, ...]) -> None:
    pytester.makeconftest(CONFTEST)
    pytester.makepyfile("def test_own(): pass")
    result = pytester.runpytest_subprocess(*options, *ALONE)
    assert result.ret == 0
    loaded = json.loads((pytester.path / "loaded.json").read_text())
    assert [name for name in loaded if name in HEAVY] == []
    assert "pytest_ane.plugin" in loaded
    assert "pytest_ane.plugin._workspace" not in loaded


def test_importing_the_package_costs_nothing(pytester: pytest.Pytester) -> None:
    code = "import sys, pytest_ane; print(*sorted(m for m in sys.modules if 'pytest' in m))"
    result = pytester.runpython_c(code)
    assert result.outlines == ["pytest_ane"]


@pytest.mark.slow
def test_a_warm_run_imports_no_transformers(project: Project) -> None:
    """Its prompts are texts, and the report spells what the shards said to them."""
    prompted(project, "words", 'text = "fedcba cab"', greedy=3).pytester.makeconftest(CONFTEST)
    loaded = []
    for _ in range(2):
        result = project.pytester.runpytest_subprocess(
            *ALONE, "--ane-shards=all", "-m", "gate", f"--ane-cache={project.path / 'cache'}"
        )
        result.assert_outcomes(passed=13)
        loaded.append(json.loads((project.path / "loaded.json").read_text()))
    for name in ("tokenizers", "transformers"):
        assert [name in run for run in loaded] == [True, False]


@pytest.mark.drawn
@pytest.mark.slow
def test_the_plugin_can_be_switched_off(pytester: pytest.Pytester) -> None:
    pytester.makepyfile("def test_own(): pass")
    assert pytester.runpytest_subprocess("-p", "no:ane").ret == 0
    result = pytester.runpytest_subprocess("-p", "no:ane", "--ane-shards=all")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["*unrecognized arguments: --ane-shards=all"])


@pytest.mark.drawn
@pytest.mark.slow
def test_own_gates_are_left_out_where_the_plugin_is_switched_off(pytester: pytest.Pytester) -> None:
    from pytest_ane.cli import main

    assert main(["init", str(pytester.path)]) == 0
    pytester.makepyfile("def test_own(): pass")
    pytester.runpytest_subprocess("-p", "no:ane").assert_outcomes(passed=1)
