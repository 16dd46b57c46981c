"""The workflow and the action: valid, minimal in what they may do, and safe from injected text."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from pytest_ane.cli import parser
from pytest_ane.mac import first_contact
from tests.ci.runner import ACTION, CI, load

WORKFLOWS = CI.parents[1] / ".github/workflows"
SHARED = (
    "actions/(checkout|setup-python|cache|(up|down)load-artifact|attest)|sigstore/cosign-installer"
)


def steps() -> list[dict[str, Any]]:
    jobs = load("gates.yml")["jobs"].values()
    return [*(s for job in jobs for s in job["steps"]), *load("action.yml")["runs"]["steps"]]


@pytest.mark.drawn
@pytest.mark.parametrize(
    ("file", "schema"),
    [
        (CI / "gates.yml", "vendor.github-workflows"),
        (CI / "action.yml", "vendor.github-actions"),
        (WORKFLOWS / "ci.yml", "vendor.github-workflows"),
        (WORKFLOWS / "macos.yml", "vendor.github-workflows"),
        (WORKFLOWS / "nightly.yml", "vendor.github-workflows"),
    ],
    ids=lambda value: getattr(value, "name", value),
)
def test_the_schema_of_github_holds(file: Path, schema: str) -> None:
    command = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", schema, file]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_zizmor_finds_nothing() -> None:
    """Its default audits, offline; docs/how-to/ci.md explains why actions are named by version."""
    command = [Path(sys.executable).with_name("zizmor"), "--offline", "--no-progress"]
    command += ["--min-severity=medium", "--config", Path(__file__).with_name("zizmor.yml")]
    done = subprocess.run(
        [*command, CI / "gates.yml", CI / "action.yml"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_no_expression_stands_in_a_script() -> None:
    assert [step["name"] for step in steps() if "${{" in step.get("run", "")] == []


def test_actions_are_few_and_have_a_version() -> None:
    used = {step["uses"] for step in steps() if "uses" in step} - {ACTION}
    assert {name for name in used if not re.fullmatch(rf"({SHARED})@v\d+", name)} == set()


def test_the_mac_runs_nothing_from_a_pull_request() -> None:
    workflow = load("gates.yml")
    mac = [job for job in workflow["jobs"].values() if "self-hosted" in job["runs-on"]]
    only = "github.event_name == 'workflow_dispatch' && github.ref == 'refs/heads/main'"
    assert [job["if"] for job in mac] == [only]
    assert "pull_request_target" not in workflow[True]


def test_what_may_write_or_sign_runs_no_code_of_the_branch() -> None:
    """Nor does the required check; and what runs that code may only read, and has no secrets."""
    jobs = load("gates.yml")["jobs"]
    for name, job in jobs.items():
        runs_code = any(step.get("uses") == ACTION for step in job["steps"])
        assert runs_code == (name in ("measure", "record"))
        if runs_code:
            assert job["permissions"] == {"contents": "read"}
            assert "secrets." not in str(job)
        else:
            assert "pytest " not in str(job)
    verify = next(s for s in jobs["verify"]["steps"] if s.get("name") == "Verify")
    assert "python -I -m pytest_ane.cli evidence verify-run" in verify["run"]


def test_the_required_check_is_never_skipped_and_may_only_read() -> None:
    workflow = load("gates.yml")
    assert workflow["permissions"] == {}
    verify = workflow["jobs"]["verify"]
    # Not even where what it needs has failed.
    assert verify["if"] == "${{ !cancelled() }}"
    assert set(verify["permissions"].values()) == {"read"}
    # A filter by path would leave the check pending, and the pull request with it.
    assert set(workflow[True]["pull_request"]) == {"types"}


def test_the_workflow_of_hosted_macs_requires_that_no_evidence_is_recorded() -> None:
    steps = yaml.safe_load((WORKFLOWS / "macos.yml").read_text())["jobs"]["first-contact"]["steps"]
    required, every = (step for step in steps if "first-contact" in step.get("run", ""))
    program, *arguments = shlex.split(required["run"])
    assert program == ".venv/bin/pytest-ane"
    words = parser().parse_args(arguments).keyword.split(" or ")
    assert {"evidence", "memory", "error"} <= set(words)
    tests = "".join(path.read_text() for path in first_contact.SUITE.glob("test_*.py"))
    assert [word for word in words if f"def test_{word}" not in tests] == []
    assert (required.get("continue-on-error"), every["continue-on-error"]) == (None, True)
