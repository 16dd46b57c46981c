"""Canaries: shards that must pass before any other shard of their model is built.

Nothing is left to the order of tests. Whoever is about to build another shard first asks what the
canaries' gates say; where that is not known yet, it asks the gates itself, under a lock. So it
holds in every worker of xdist, under `-k` and `--lf`, and when a worker dies.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

import pytest

from pytest_ane.core.errors import AneError, NotRunError, UnprovenError
from pytest_ane.core.verdict import Gate, Verdict
from pytest_ane.manifest import Shard
from pytest_ane.plugin.insist import insisted
from pytest_ane.plugin.recording import Evidence
from pytest_ane.plugin.workspace import Workspace
from pytest_ane.project.suite import in_use, shipped
from pytest_ane.report.text import brief

KEY = pytest.StashKey["Canaries"]()
GATES: tuple[Gate, ...] = ("placement", "compression", "fidelity")
"""What a canary is asked."""


def of(config: pytest.Config) -> Canaries:
    """The run's canaries, put there by `watch`."""
    return config.stash[KEY]


def watch(config: pytest.Config, space: Workspace) -> None:
    """Let no shard be built before the canaries of its model have passed."""
    config.stash[KEY] = canaries = Canaries(space, in_use(config.rootpath))
    space.before_build = canaries.require


class Canaries:
    """What is known of the canaries of a run.

    A complaint is the end of the sentence `canary L01 ...`; it is empty where the gate passed.
    """

    def __init__(self, space: Workspace, gates: Path) -> None:
        self._space = space
        self._gates = gates
        self._known: dict[tuple[str, str], str] = {}

    def of(self, model: str) -> tuple[Shard, ...]:
        """The canaries that are selected, if other shards of the model are selected too."""
        chosen = [shard for shard in self._space.shards if shard.model == model]
        named = self._space.manifest.model_of(model).canary
        found = tuple(shard for shard in chosen if shard.id in named)
        return found if len(found) < len(chosen) else ()

    def has(self, shard: Shard) -> bool:
        """Whether others wait for this shard."""
        return any(canary.id == shard.id for canary in self.of(shard.model))

    def require(self, shard: Shard) -> None:
        """Let a canary pass, and others if their canaries have.

        Raises:
            NotRunError: a canary failed, or has no verdict.
        """
        if self.has(shard):
            return
        for canary in self.of(shard.model):
            if complaint := self._complaint(canary):
                raise NotRunError(f"not run: canary {canary.id} {complaint}")

    def note(self, subject: str, gate: str, complaint: str) -> None:
        """Remember what a gate said of a canary, for all processes of the run."""
        self._known[subject, gate] = complaint
        self._space.run.write(_name(subject, gate), [subject, gate, complaint])

    def _complaint(self, canary: Shard) -> str:
        found = self._noted(canary)
        if all(gate in found for gate in GATES) or any(found.values()):
            return _first(found)
        # Others may be asking at this moment: then this waits, and finds their answers.
        with (
            self._space.progress.showing(f"waiting for canary {canary.qualified}"),
            self._space.run.lock(_name(canary.qualified)),
        ):
            found = self._noted(canary)
            for gate in GATES:
                if gate not in found and not any(found.values()):
                    found[gate] = self._ask(gate, canary)
                    self.note(canary.qualified, gate, found[gate])
        return _first(found)

    def _noted(self, canary: Shard) -> dict[str, str]:
        for subject, gate, complaint in self._space.run.read(_name(canary.qualified)):
            self._known[subject, gate] = complaint
        known = self._known.items()
        return {gate: says for (subject, gate), says in known if subject == canary.qualified}

    def _ask(self, gate: Gate, canary: Shard) -> str:
        """Call the gate's own test function with what its fixtures would give."""
        verdicts: list[Verdict] = []
        opened, evidence = self._space.open_shard(canary), Evidence(self._space, canary)
        values: Mapping[str, Callable[[], Any]] = {
            "ane_shard": lambda: canary,
            "ane_artifact": lambda: opened.artifact,
            "ane_program": lambda: opened.program,
            "ane_backend": lambda: opened.backend,
            "ane_probes": lambda: canary.probes,
            "ane_reference": opened.cases,
            "ane_cases": lambda: opened.cases,
            "ane_evidence": lambda: evidence,
            "ane_gate": lambda: verdicts.append,
        }
        try:
            ask = _function(gate, self._gates, frozenset(values))
            ask(**{name: values[name]() for name in inspect.signature(ask).parameters})
        except UnprovenError as error:
            says = str(error)
            verdicts.append(Verdict(gate, canary.qualified, "unproven", brief(says), (says,)))
        except AneError as error:
            return unknown(gate, brief(str(error)))
        except (AssertionError, pytest.fail.Exception):
            return failed(gate)
        # Whatever else went wrong: the canary has not passed, and the others must not be built.
        except (Exception, pytest.skip.Exception) as error:
            return unknown(gate, repr(error))
        recorded = evidence.found is not None
        held = (insisted(verdict, self._space, recorded=recorded) for verdict in verdicts)
        return next(filter(None, map(self._complaint_of, held)), "")

    def _complaint_of(self, verdict: Verdict) -> str:
        if verdict.status == "unproven" and self._space.allows_unproven(verdict.subject):
            return ""
        return "" if verdict.status == "passed" else failed(verdict.gate, verdict.status)


def noted(report: pytest.TestReport, gate: str) -> str | None:
    """The complaint that a test's report makes; None where it decides nothing yet."""
    if report.failed:
        facts = dict(report.user_properties)
        status = str(facts.get("ane.status", "failed"))
        if status in ("error", "not run"):
            return unknown(gate, str(facts["ane.summary"]))
        return failed(gate, status)
    return "" if report.when == "call" and report.passed else None


def failed(gate: str, status: str = "failed") -> str:
    """`failed placement`, or `left placement unproven`."""
    return f"left {gate} unproven" if status == "unproven" else f"failed {gate}"


def unknown(gate: str, why: str) -> str:
    """`has no verdict on placement: ...`."""
    return f"has no verdict on {gate}: {why}"


def _first(found: Mapping[str, str]) -> str:
    return next(filter(None, found.values()), "")


def _name(subject: str, gate: str = "") -> str:
    return f"canary-{subject.replace(':', '+')}+{gate}"


def _function(gate: str, folder: Path, known: frozenset[str]) -> Callable[..., None]:
    """The test of a gate: the project's own, or ours where that needs fixtures we do not have."""
    for place in (folder, shipped()):
        file, name = place / f"test_{gate}.py", f"test_{gate}"
        spec = spec_from_file_location(f"pytest_ane_canary_{gate}", file)
        if spec is None or spec.loader is None or not file.is_file():
            continue
        module = module_from_spec(spec)
        spec.loader.exec_module(module)
        function: Callable[..., None] | None = getattr(module, name, None)
        if function is not None and known >= set(inspect.signature(function).parameters):
            return function
    raise NotRunError(f"{gate}: there is no such gate in {folder} or {shipped()}")
