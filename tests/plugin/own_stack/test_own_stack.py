"""The example of a stack of one's own packages: green as it is, and red with each of ten faults."""

from __future__ import annotations

from pathlib import Path

import pytest

from pytest_ane.gates.registry import GATES
from pytest_ane.gates.verdict import Verdict
from pytest_ane.mlprogram.errors import AneError
from pytest_ane.project.project import Project, read_project
from tests.plugin.own_stack.faults import FAULTS, Fault

pytestmark = [
    pytest.mark.slow,
    # The example traces modules, as coremltools asks.
    pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning"),
    # coremltools leaves its temporary folders to Python.
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]


def verdicts(project: Project) -> dict[str, str]:
    """By gate and subject the first reason of what is not green; empty for what is."""
    found = {}
    for test in project.due(("gate",)):
        gate = GATES[test.gate]
        if gate.scope == "model":
            asked = project.manifest.model_of(test.subject).in_arithmetic((test.arithmetic,))
            context = project.stack(test.subject, test.arithmetic)
        else:
            asked = project.manifest.shard(test.subject).in_arithmetic((test.arithmetic,))
            context = project.open_shard(asked)
        try:
            verdict: Verdict = gate.judge(gate.measure(context), gate.policy(asked.policy), asked)
        except AneError as error:
            found[f"{test.gate} {test.subject}"] = str(error)
            continue
        texts = [finding.reason for finding in verdict.findings]
        found[f"{test.gate} {test.subject}"] = "" if verdict.status == "passed" else " ".join(texts)
    return found


@pytest.mark.drawn(3)
def test_the_example_is_green(stack: Path) -> None:
    with read_project(stack / "shards.toml", stack / "cache").use() as project:
        found = verdicts(project)
    assert len(found) == 28
    assert not any(found.values())


@pytest.mark.drawn
@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_every_fault_is_red_and_its_package_is_named(stack: Path, fault: Fault) -> None:
    fault.write(stack)
    with read_project(stack / "shards.toml", stack / "cache").use() as project:
        found = {what: text for what, text in verdicts(project).items() if text}
        assert "behaviour mine" in found
        assert fault.shard in found["behaviour mine"]
