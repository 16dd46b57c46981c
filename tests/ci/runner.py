"""The part of a GitHub runner that runs `run:` steps: what the yaml files say, as bash runs it.

`uses:` of an action inside the repository is followed; other actions are not run, only noted.
"""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

CI = Path(__file__).resolve().parents[2] / "examples/ci"
ACTION = "./.github/actions/gates"

_EXPRESSION = re.compile(r"\$\{\{\s*(.*?)\s*\}\}")
_CONDITION = re.compile(r"([\w.-]+) (==|!=) '([^']*)'")
_OUTPUT = re.compile(r"(\w+)<<(\w+)\n(.*?)\n?\2\n", re.S)


def load(name: str) -> dict[str, Any]:
    """A yaml file of `examples/ci`. YAML 1.1 reads the key `on` as true."""
    found: dict[str, Any] = yaml.safe_load((CI / name).read_text())
    return found


@dataclass(frozen=True)
class Done:
    """A step that ran."""

    name: str
    code: int
    output: str


@dataclass
class Runner:
    """A machine with a checkout.

    Attributes:
        workspace: the checkout.
        context: what expressions such as `github.ref_name` stand for, by name.
        path: folders that come first on PATH.
        env: more variables.
        used: actions that were not run.
    """

    workspace: Path
    context: Mapping[str, str]
    path: tuple[Path, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    used: list[str] = field(default_factory=list)

    @property
    def summary(self) -> str:
        """The job summary so far."""
        file = self.workspace / ".runner/summary.md"
        return file.read_text() if file.exists() else ""

    def job(self, name: str, overrides: Mapping[str, str]) -> list[Done]:
        """Run a job of the workflow until a step fails; `overrides` are inputs of our action."""
        workflow = load("gates.yml")
        known = {f"env.{key}": value for key, value in workflow["env"].items()}
        known |= self.context
        return list(self._steps(workflow["jobs"][name]["steps"], known, overrides))

    def some(self, name: str, steps: Sequence[str]) -> list[Done]:
        """Run only the named steps of a job."""
        found = [s for s in load("gates.yml")["jobs"][name]["steps"] if s.get("name") in steps]
        assert len(found) == len(steps)
        return list(self._steps(found, self.context, {}))

    def _steps(
        self, steps: list[dict[str, Any]], known: Mapping[str, str], overrides: Mapping[str, str]
    ) -> Iterator[Done]:
        failed, known = False, dict(known)
        for step in steps:
            condition = str(step.get("if", "success()"))
            if not _holds(condition, known, failed):
                continue
            if step.get("uses") == ACTION:
                action = load("action.yml")
                inputs = {key: value["default"] for key, value in action["inputs"].items()}
                inputs |= {key: _filled(text, known) for key, text in step["with"].items()}
                inside = {f"inputs.{k}": v for k, v in (inputs | dict(overrides)).items()}
                for done in self._steps(action["runs"]["steps"], {**known, **inside}, {}):
                    failed = failed or done.code != 0
                    yield done
            elif "uses" in step:
                self.used.append(step["uses"])
            else:
                done = self._run(step, known)
                known |= self._outputs(step.get("id"))
                failed = failed or done.code != 0
                yield done

    def _run(self, step: dict[str, Any], known: Mapping[str, str]) -> Done:
        """As `shell: bash` does: `bash --noprofile --norc -eo pipefail FILE`."""
        folder = self.workspace / ".runner"
        folder.mkdir(exist_ok=True)
        script = folder / "step.sh"
        script.write_text(step["run"])
        (folder / "output").write_text("")
        env = {key: value for key, value in os.environ.items() if not key.startswith("GITHUB_")}
        env |= {
            "GITHUB_ACTIONS": "true",
            "GITHUB_OUTPUT": str(folder / "output"),
            "GITHUB_STEP_SUMMARY": str(folder / "summary.md"),
            "GITHUB_WORKSPACE": str(self.workspace),
            "RUNNER_TEMP": str(folder),
        }
        env |= {key: _filled(text, known) for key, text in step.get("env", {}).items()}
        env |= self.env
        env["PATH"] = os.pathsep.join([*map(str, self.path), env["PATH"]])
        done = subprocess.run(
            ["bash", "--noprofile", "--norc", "-eo", "pipefail", str(script)],
            cwd=self.workspace, env=env, text=True, check=False,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )  # fmt: skip
        return Done(step["name"], done.returncode, done.stdout)

    def _outputs(self, step: str | None) -> dict[str, str]:
        text = (self.workspace / ".runner/output").read_text()
        return {f"steps.{step}.outputs.{name}": value for name, _, value in _OUTPUT.findall(text)}


def _filled(text: str, known: Mapping[str, str]) -> str:
    return _EXPRESSION.sub(lambda found: known[found[1]], str(text))


def _holds(condition: str, known: Mapping[str, str], failed: bool) -> bool:
    """Of the conditions there are, those that our files use; any other is an error."""
    found = _EXPRESSION.fullmatch(condition)
    condition = found[1] if found else condition
    if condition == "!cancelled()":
        return True
    if condition == "success()":
        return not failed
    if " && " in condition:
        return all(_holds(part, known, failed) for part in condition.split(" && "))
    compared = _CONDITION.fullmatch(condition)
    assert compared is not None, condition
    name, operator, value = compared.groups()
    return not failed and (known[name] == value) == (operator == "==")
