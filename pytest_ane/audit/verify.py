"""A run judged again, from its ledger, by the base branch's rules and by code of the base branch.

The run executed whatever the pull request brought along, so nothing it says of itself counts: not
its exit code, not its verdicts. Forecasts and censuses are made again; verdicts are derived again
from measurements of the very bytes that lie in the checkout; and some measurements, which the
commit picks, are made again.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from functools import cached_property, partial
from pathlib import Path
from typing import Any

from pytest_ane.audit.base import Base
from pytest_ane.audit.ledger import Entry, Ledger, gate_files, plugin_digest
from pytest_ane.backends.coreml import without_ane
from pytest_ane.evidence import FOLDER, Statement, Store
from pytest_ane.evidence.question import files_of, question
from pytest_ane.evidence.statement import plain
from pytest_ane.evidence.systems import Answer, answers, combined, worst
from pytest_ane.evidence.verify import verify
from pytest_ane.gates.base import Gate, GateTest, Subject
from pytest_ane.gates.registry import GATES
from pytest_ane.gates.verdict import Figure, Finding, Verdict, nothing
from pytest_ane.manifest import Manifest, Shard, load
from pytest_ane.manifest.evidence import WITH_ANE
from pytest_ane.mlprogram.arithmetic import label
from pytest_ane.mlprogram.errors import AneError, UnprovenError
from pytest_ane.models.families import make_importable
from pytest_ane.project.entries import expanded
from pytest_ane.project.project import Project
from pytest_ane.records.git import checkout

_SHARE, _LEAST = 0.01, 1e-3
"""How far a figure measured again may be from the ledger's: other processors round differently."""


@dataclass(frozen=True)
class Audit:
    """What came of it.

    Attributes:
        problems: sentences of what is wrong with the run as a whole.
        verdicts: one for each gate that is due, derived again.
        changes: what the pull request changes of what judges it.
        rechecked: what was measured again, `fidelity m:L01`.
    """

    problems: tuple[str, ...]
    verdicts: tuple[Verdict, ...]
    changes: tuple[str, ...]
    rechecked: tuple[str, ...]


class Auditor:
    """Judges a run again.

    Args:
        ledger: of the run.
        base: of the pull request.
        cache: where shards are built; None for the user's own.
        reviewed: whether a person has agreed to the changes, so that the pull request's own
            manifest judges.
        recheck: how many measurements are made again; below 1 the share of them.
    """

    def __init__(
        self,
        ledger: Ledger,
        base: Base,
        *,
        cache: Path | None = None,
        reviewed: bool = False,
        recheck: float = 0,
    ) -> None:
        self._ledger, self._base = ledger, base
        self._reviewed, self._recheck = reviewed, recheck
        self._manifest: Manifest = expanded(load(base.head) if reviewed else base.manifest)
        make_importable(self._manifest if reviewed else load(base.path))
        self._project = Project(
            self._manifest,
            self._manifest.shards,
            cache,
            backend_name="cpu",
            notify=lambda text: None,
            store="",  # A pull request may name any store.
        )

    def audit(self) -> Audit:
        """Judge everything that is due.

        Raises:
            AneError: a manifest is wrong, or a source is missing.
        """
        changes = self._base.changes()
        with self._project.use(rehash=True):
            picked = self._picked()
            verdicts = tuple(self._verdict(test, measure=test in picked) for test in self._due)
        rechecked = tuple(f"{test.gate} {test.id}" for test in picked)
        return Audit(tuple(self._problems(changes)), verdicts, tuple(changes), rechecked)

    def allows(self, verdict: Verdict) -> bool:
        """Whether the policy lets a verdict be that is not passed."""
        policy = self._subject(verdict.subject).policy
        return verdict.status == "unproven" and policy.unproven == "allow"

    def _problems(self, changes: Sequence[str]) -> Iterator[str]:
        opening = self._ledger.opening
        commit, clean = checkout(self._base.head.parent)
        if opening.commit != commit:
            run, here = (text[:12] or "no commit" for text in (opening.commit, commit))
            yield f"the run was of {run}, and this checkout is {here}"
        if not (opening.clean and clean):
            yield "tracked files were changed, so the run is of no commit"
        if opening.plugin != plugin_digest():
            yield "the run used another pytest-ane than this one"
        judging = self._base.head if self._reviewed else self._base.path
        if dict(opening.gates) != gate_files(judging.parent):
            yield "the run used other files of gates than the base"
        if changes and not self._reviewed:
            yield "what judges the run is changed, and nobody has reviewed it"
        if self._ledger.closing.exit_code:
            yield f"pytest ended with exit code {self._ledger.closing.exit_code}"

    @cached_property
    def _due(self) -> list[GateTest]:
        return [test for test in self._project.due({"gate"}) if not self._is_of_device(test)]

    def _is_of_device(self, test: GateTest) -> bool:
        """Whether a device ran what is due in the executor's arithmetic: it has one of its own."""
        entry = self._ledger.entry(test._replace(arithmetic="typed"))
        if test.arithmetic == "typed" or entry is None or entry.statement is None:
            return False
        statement = Statement.from_json(entry.statement.encode())
        return statement.environment.get("backend", "cpu") != "cpu"

    def _picked(self) -> list[GateTest]:
        """What is measured again: drawn by the commit, the same ones in every run of the check."""
        costly = [test for test in self._due if self._is_believed(test)]
        share = self._recheck if self._recheck >= 1 else self._recheck * len(costly)
        seed = hashlib.sha256(self._ledger.opening.commit.encode()).hexdigest()
        count = min(len(costly), int(share) + (share % 1 > 0))
        return random.Random(seed).sample(costly, count)

    def _is_believed(self, test: GateTest) -> bool:
        """Whether a verdict rests on what the run measured."""
        gate, subject = GATES[test.gate], self._subject(test.subject)
        believed = gate.recordable and not gate.static
        return believed and not subject.policy.requires_evidence(gate.name)

    def _subject(self, name: str) -> Subject:
        model, colon, _ = name.partition(":")
        return self._manifest.shard(name) if colon else self._manifest.model_of(model)

    def _verdict(self, test: GateTest, *, measure: bool) -> Verdict:
        """A verdict by the policy; `unproven` where there is nothing to derive it from."""
        gate, subject = GATES[test.gate], self._subject(test.subject)
        if gate.by_arithmetic:
            subject = subject.in_arithmetic((test.arithmetic,))
        try:
            return self._judged(gate, subject, measure=measure)
        except AneError as error:
            reason, _, remedy = str(error).partition("; ")
            return nothing(gate.name, subject.qualified, reason, remedy)

    def _judged(self, gate: Gate[Any], subject: Subject, *, measure: bool) -> Verdict:
        entry = self._ledger.entry(gate.test(subject))
        if entry is None:
            raise UnprovenError("due, and the ledger has no verdict of it")
        if entry.outcome != "passed":
            raise UnprovenError(
                f"the run's test {entry.outcome}, and its verdict was {entry.status}"
            )
        if subject.policy.requires_evidence(gate.name):
            return combined(self._answers(gate, subject))
        if gate.static or not gate.recordable:
            return self._static(gate, subject)
        statement = self._believed(gate, subject, entry)
        verdict = gate.judge(statement.measurement, gate.policy(subject.policy), subject)
        if measure:
            verdict = self._measured_again(gate, subject, statement, verdict)
        return verdict

    def _static(self, gate: Gate[Any], subject: Subject) -> Verdict:
        """What takes no run or is never recorded, made again; a plan goes before a forecast."""
        assert isinstance(subject, Shard)
        if gate.recorded_first and worst(found := self._answers(gate, subject)).error is None:
            return combined(found)
        measurement = gate.measure(self._project.open_shard(subject))
        return gate.judge(measurement, gate.policy(subject.policy), subject)

    def _believed(self, gate: Gate[Any], subject: Subject, entry: Entry) -> Statement:
        """What the ledger holds, if it is of these bytes and answers today's question."""
        if entry.statement is None:
            raise UnprovenError("the ledger has no measurement of it")
        statement = Statement.from_json(entry.statement.encode())
        if (statement.gate, statement.subject) != (gate.name, subject.qualified):
            raise UnprovenError(f"its measurement is {statement.gate} of {statement.subject}")
        if statement.files != self._files(subject):
            raise UnprovenError("it was measured of other bytes than lie in this checkout")
        if statement.asked != plain(self._question(gate, subject)):
            raise UnprovenError("its measurement answers another question than the base asks")
        computed = {
            label(getattr(statement.measurement, "arithmetic", "typed")),
            statement.environment.get("arithmetic", "typed"),
        }
        if computed != {label(gate.test(subject).arithmetic)}:
            raise UnprovenError(f"its measurement was computed as {', '.join(sorted(computed))}")
        if "native" in statement.environment:
            raise UnprovenError("its measurement was answered by a replay")
        units = statement.environment.get("compute_units", "")
        if gate.by_device and units in WITH_ANE and (kind := without_ane(statement.environment)):
            raise UnprovenError(f"it was measured on {kind}, which proves nothing of the ANE")
        return statement

    def _answers(self, gate: Gate[Any], subject: Subject) -> list[Answer]:
        """What evidence comes to, on each system that the policy names."""
        return answers(gate.name, subject, partial(self._recorded, gate, subject))

    def _recorded(self, gate: Gate[Any], subject: Subject, system: str) -> Statement:
        """Evidence of a device; no older one than the base has."""
        store = Store(self._base.head.parent / FOLDER)
        statement = verify(
            store,
            gate.name,
            subject,
            files=self._files(subject),
            asked=self._question(gate, subject),
            policy=subject.policy.evidence_for(gate.name),
            now=datetime.now(timezone.utc),
            artifact=self._project.artifact(subject) if isinstance(subject, Shard) else None,
            system=system,
        )
        base = Store(self._base.path.parent / FOLDER)
        before = base.read(gate.name, subject.qualified, system)
        if before is not None:
            older = Statement.from_json(before)
            if statement.counter < older.counter:
                raise UnprovenError(
                    f"its evidence was rolled back: record {statement.counter} stands in place of "
                    f"record {older.counter}"
                )
        return statement

    def _measured_again(
        self, gate: Gate[Any], subject: Subject, statement: Statement, verdict: Verdict
    ) -> Verdict:
        if isinstance(subject, Shard):
            measured = gate.measure(self._project.open_shard(subject))
        else:
            arithmetic = gate.test(subject).arithmetic
            measured = gate.measure(self._project.stack(subject.name, arithmetic))
        again = gate.judge(measured, gate.policy(subject.policy), subject)
        if again.status != "passed":
            return again
        if lines := list(_far(gate.figures(statement.measurement), gate.figures(measured))):
            reason = f"measured again, it differs from the ledger: {lines[0]}"
            return replace(verdict, findings=(Finding("failed", reason), *verdict.findings))
        return verdict

    def _question(self, gate: Gate[Any], subject: Subject) -> Mapping[str, Any]:
        model = self._manifest.model_of(subject.qualified.partition(":")[0])
        return question(gate.name, subject, model, lambda: self._project.model(model.name).identity)

    def _files(self, subject: Subject) -> dict[str, str]:
        shards = (subject,) if isinstance(subject, Shard) else subject.shards
        return files_of({shard.id: self._project.artifact(shard) for shard in shards})


def _far(told: Sequence[Figure], measured: Sequence[Figure]) -> Iterator[str]:
    """Figures that are further apart than two processors' rounding."""
    values = {figure.name: figure.value for figure in measured}
    for figure in told:
        then, now = figure.value, values.get(figure.name)
        numbers = isinstance(then, int | float) and isinstance(now, int | float)
        if numbers and abs(then - now) <= max(_LEAST, _SHARE * abs(now)):  # type: ignore[operator,arg-type]
            continue
        if then != now:
            yield f"{figure.name} {then} in the ledger, {now} measured"
