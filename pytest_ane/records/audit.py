"""A run judged again, by the base branch's rules and by code of the base branch.

Nothing that the run says of itself counts: forecasts and censuses are made again, verdicts derived
from measurements of the very bytes that lie in the checkout, and some measurements repeated, which
the commit picks. A change of what judges (manifest, policies, signers, gates) needs a review.
"""

from __future__ import annotations

import ast
import hashlib
import io
import json
import math
import os
import random
import re
import subprocess
import sys
import tarfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from functools import cached_property, partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from pytest_ane.backends.coreml import without_ane
from pytest_ane.gates.base import Gate, GateTest, Subject
from pytest_ane.gates.registry import GATES
from pytest_ane.gates.verdict import STATUSES, Figure, Finding, Verdict, nothing
from pytest_ane.manifest import Manifest, Model, Shard, load
from pytest_ane.manifest.load import parse
from pytest_ane.manifest.policy import WITH_ANE
from pytest_ane.manifest.tables import FAMILIES
from pytest_ane.mlprogram.arithmetic import label
from pytest_ane.mlprogram.digests import content_digest
from pytest_ane.mlprogram.errors import AneError, EvidenceError, ManifestError, UnprovenError
from pytest_ane.models.families.own import make_importable
from pytest_ane.project.entries import expanded
from pytest_ane.project.project import Project
from pytest_ane.records.record import Record, files_of, plain, question
from pytest_ane.records.run import CUT_OFF, RunFile, checkout, gate_files, plugin_digest
from pytest_ane.records.store import FOLDER, Store, systems_of
from pytest_ane.records.verify import Answer, EvidenceFile, answers, combined, differences, worst

_LONGEST = 80
_NOTHING_COLLECTED = 5
"""pytest's exit code."""
_SHIPPED = re.compile(rf"gates/test_(?P<gate>{'|'.join(GATES)})\.py::test_(?P=gate)\[")
"""What the suite has of the shipped gates."""
_SETTINGS = ("pytest.ini", ".pytest.ini", "pytest.toml", "pyproject.toml", "tox.ini", "setup.cfg")
"""Where pytest looks for its settings."""
_SHARE, _LEAST = 0.01, 1e-3
"""How far a figure measured again may be from the run's: other processors round differently."""


@dataclass(frozen=True)
class Base:
    """A manifest in a checkout of the base branch, and the same in the pull request's, the head."""

    path: Path
    head: Path

    @cached_property
    def manifest(self) -> Manifest:
        """The base's manifest over the pull request's files; keys of signers are the base's."""
        own = load(self.path)
        over = parse(self.path.read_text(encoding="utf-8-sig"), self.head)
        models = []
        for model in over.models:
            mine = own.model_of(model.name)
            policies = {shard.id: shard.policy for shard in mine.shards}
            shards = [s.model_copy(update={"policy": policies[s.id]}) for s in model.shards]
            models.append(model.model_copy(update={"shards": tuple(shards), "policy": mine.policy}))
        return over.model_copy(update={"models": tuple(models)})

    def changes(self) -> list[str]:
        """What a pull request changes of what judges it, policies first: manifest, files named."""
        own, theirs = load(self.path), load(self.head)
        lines = []
        before, after = _files(own), _files(theirs)  # Digests by name.
        for name in self._around_gates():
            before |= _digest_of(self.root, name)
            after |= _digest_of(self.head_root, name)
        every = (*differences(_data(own), _data(theirs)), *differences(before, after))
        for path, old, new in every:
            values = f"{str(old)[:_LONGEST]} -> {str(new)[:_LONGEST]}"
            what = "edited" if path in before else values
            what = "added" if old is None else "removed" if new is None else what
            lines.append(f"{path} {what}")
        return sorted(lines, key=lambda line: ".policy." not in line)

    @cached_property
    def head_root(self) -> Path:
        """The folder of the pull request's checkout."""
        return _root(self.head) or self.head.parent

    @cached_property
    def root(self) -> Path:
        """The folder of the base's checkout."""
        depth = len(self.head.relative_to(self.head_root).parts)
        return self.path.parents[depth - 1]

    @cached_property
    def own_gates(self) -> tuple[str, ...]:
        """Gates of the base's own, by the names pytest collects them with; its code is run.

        They are looked for in files that say `mark.gate`. `EvidenceError` where that fails.
        """
        if not (files := self._own_files):
            return ()
        command = [sys.executable, "-I", "-m", "pytest", "--collect-only", "-q", "-m", "gate"]
        command += ["--ane-shards=all", f"--ane-manifest={self.path}", f"--rootdir={self.root}"]
        done = subprocess.run(
            [*command, "-p", "no:cacheprovider", *files],
            cwd=self.root, capture_output=True, text=True, errors="replace", check=False,
        )  # fmt: skip
        if done.returncode not in (0, _NOTHING_COLLECTED):
            said = (done.stdout + done.stderr).strip().splitlines() or [""]
            raise EvidenceError(f"The base's own gates cannot be collected: {said[-1]}")
        lines = (line for line in done.stdout.splitlines() if "::" in line)
        return tuple(line for line in lines if not _SHIPPED.match(line))

    @cached_property
    def _own_files(self) -> list[str]:
        found = (path.relative_to(self.root) for path in self.root.rglob("*.py"))
        visible = (path for path in found if not any(part[0] == "." for part in path.parts))
        return sorted(str(p) for p in visible
                      if "mark.gate" in (self.root / p).read_text("utf-8", "replace"))  # fmt: skip

    def _around_gates(self) -> list[str]:
        """Files that decide what own gates are and say: settings, conftests, what they import."""
        if not self.own_gates:
            return []
        known, new = set(map(Path, _SETTINGS)), [Path(name) for name in self._own_files]
        while new:
            if (file := new.pop()) not in known:
                known.add(file)
                new += [folder / "conftest.py" for folder in file.parents]
                new += _imported(self.root / file, file.parents)
        return sorted(map(str, known))

    def evidence(self) -> list[str]:
        """Files of evidence that are not as the base has them."""
        before, after = (_digests(path.parent / FOLDER) for path in (self.path, self.head))
        return [
            f"{FOLDER}/{name} {'added' if old is None else 'removed' if new is None else 'edited'}"
            for name, old, new in differences(before, after)
        ]

    def require_inside(self) -> None:
        """`EvidenceError` where a path of the pull request's is a link that leads out of it."""
        root = self.head_root
        _require_inside(root, (self.head, self.head.parent / FOLDER))
        both = [load(self.head).model_dump(), self.manifest.model_dump()]
        named = {Path(os.path.abspath(path)) for path in _paths(both)}  # noqa: PTH100 (links stay)
        _require_inside(root, sorted(path for path in named if path.is_relative_to(root)))


def _digest_of(root: Path, name: str) -> dict[str, str]:
    return {name: content_digest(root / name)} if (root / name).is_file() else {}


def _imported(file: Path, folders: Sequence[Path]) -> Iterator[Path]:
    """Where what a file imports may lie in a checkout: below one of these folders."""
    with suppress(OSError, SyntaxError, ValueError):
        for node in ast.walk(ast.parse(file.read_bytes())):
            names: list[str] = []
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom):
                module = node.module or ""
                names = [module, *(f"{module}.{alias.name}" for alias in node.names)]
            for parts in (name.strip(".").split(".") for name in names):
                for place in (folder.joinpath(*parts) for folder in folders):
                    yield from (place.with_suffix(".py"), place / "__init__.py")


def _root(manifest: Path) -> Path | None:
    return next((folder for folder in manifest.parents if (folder / ".git").exists()), None)


def _require_inside(root: Path, paths: Iterable[Path]) -> None:
    for path in paths:
        for each in (path, *path.rglob("*")):
            if not each.resolve().is_relative_to(root.resolve()):
                raise EvidenceError(
                    f"{each.relative_to(root)} leads out of the checkout, to {each.resolve()}; put "
                    "the file itself there."
                )


def _paths(value: Any) -> Iterator[Path]:
    if isinstance(value, Path):
        yield value
    elif isinstance(value, Mapping):
        yield from _paths([*value.values()])
    elif isinstance(value, list | tuple | set | frozenset):
        for each in value:
            yield from _paths(each)


def _digests(folder: Path) -> dict[str, str]:
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    return {path.relative_to(folder).as_posix(): content_digest(path) for path in files}


@contextmanager
def base_of(where: str, head: Path) -> Iterator[Base]:
    """The base of a pull request's manifest: a folder with its checkout, or git's name for it."""
    head = head.absolute()
    root = _root(head)
    if (folder := Path(where)).is_dir():
        yield Base(folder.absolute() / (head.relative_to(root) if root else head.name), head)
        return
    if root is None:
        raise ManifestError(
            f"--policy-from={where} is no folder, and {head.parent} no git checkout."
        )
    done = subprocess.run(
        ["git", "archive", "--format=tar", "--end-of-options", where],
        cwd=root, capture_output=True, check=False,
    )  # fmt: skip
    if done.returncode:
        raise ManifestError(f"--policy-from={where}: git knows no such commit; fetch it.")
    with TemporaryDirectory(prefix="pytest-ane-") as temporary:
        with tarfile.open(fileobj=io.BytesIO(done.stdout)) as tar:
            tar.extractall(temporary, filter="data")
        yield Base(Path(temporary) / head.relative_to(root), head)


def _data(manifest: Manifest) -> dict[str, Any]:
    folder = f"{manifest.path.absolute().parent}/"
    data: dict[str, Any] = {}
    for model in manifest.models:
        own = model.model_dump(mode="json", exclude={"shards"})
        own["shard"] = {s.id: s.model_dump(mode="json", exclude={"model"}) for s in model.shards}
        data[model.name] = own
    # As JSON has it, paths below the folder begin with it.
    found: dict[str, Any] = json.loads(json.dumps(data).replace(json.dumps(folder)[1:-1], ""))
    return found


def _files(manifest: Manifest) -> dict[str, str]:
    """Digests of all files below a manifest's folder that decide a verdict, but judged packages."""
    folder = manifest.path.absolute().parent
    named: set[Path] = set()
    for model in manifest.models:
        named |= set(model.depends) | set(_modules(model, folder))
        if model.source is not None and model.source.path is not None:
            named.add(model.source.path)
        table = model.embedding and model.embedding.path
        named |= {p for p in (model.reference, model.tokenizer, table) if isinstance(p, Path)}
        for shard in model.shards:
            packages = shard.reference, shard.uncompressed
            named |= {path for path in packages if isinstance(path, Path)}
            named |= set(shard.policy.evidence.signers or ())
    digests = {f"gates/{name}": digest for name, digest in gate_files(folder).items()}
    for path in named:
        if path.exists() and path.is_relative_to(folder):
            digests[path.relative_to(folder).as_posix()] = content_digest(path)
    return digests


def _modules(model: Model, folder: Path) -> Iterator[Path]:
    own = str(model.reference) if ":" in str(model.reference) else ""
    for name in (model.family, model.builder, own):
        if name and name not in FAMILIES:
            top = name.partition(":")[0].partition(".")[0]
            yield from (folder / f"{top}.py", folder / top)


@dataclass(frozen=True)
class Audit:
    """Sentences on the run, a verdict of what is due, `changes` of judges, what was `rechecked`.

    `evidence` are files of it that are not as the base has them.
    """

    problems: tuple[str, ...]
    verdicts: tuple[Verdict, ...]
    changes: tuple[str, ...]
    rechecked: tuple[str, ...]
    evidence: tuple[str, ...] = ()


class _RefusedError(AneError):
    """What a run has of a test does not count: no policy that allows what is unproven covers it."""


class Auditor:
    """Judges a run anew, by the base unless `reviewed`; `recheck` is a number, below 1 a share."""

    def __init__(
        self, run: RunFile, base: Base, *, cache: Path | None = None, reviewed: bool = False,
        recheck: float = 0,
    ) -> None:  # fmt: skip
        base.require_inside()
        self._run, self._base = run, base
        self._reviewed, self._recheck = reviewed, recheck
        self._manifest: Manifest = expanded(load(base.head) if reviewed else base.manifest)
        make_importable(self._manifest if reviewed else load(base.path))
        self._project = Project(
            self._manifest, self._manifest.shards, cache, backend_name="cpu",
            notify=lambda text: None, store="",  # A pull request may name any store.
        )  # fmt: skip

    def audit(self) -> Audit:
        """Judge everything that is due; `AneError` of a run cut off, or a wrong manifest."""
        if self._run.facts.exit_code is None:
            raise EvidenceError(f"The run has no end: {CUT_OFF}.")
        changes, evidence = self._base.changes(), tuple(self._base.evidence())
        with self._project.use(rehash=True):
            picked = self._picked()
            verdicts = tuple(self._verdict(test, measure=test in picked) for test in self._due)
            judging = replace(self._base, path=self._base.head) if self._reviewed else self._base
            verdicts += tuple(map(self._own, judging.own_gates))
        rechecked = tuple(f"{test.gate} {test.id}" for test in picked)
        return Audit(tuple(self._problems(changes)), verdicts, tuple(changes), rechecked, evidence)

    def allows(self, verdict: Verdict) -> bool:
        """Whether the policy lets a verdict be that is not passed."""
        policy = self._subject(verdict.subject).policy
        return verdict.status == "unproven" and policy.unproven == "allow"

    def _problems(self, changes: Sequence[str]) -> Iterator[str]:
        facts = self._run.facts
        commit, clean = checkout(self._base.head.parent)
        run, here = (text[:12] or "no commit" for text in (facts.commit, commit))
        judging = self._base.head if self._reviewed else self._base.path
        for holds, problem in (
            (facts.commit == commit, f"the run was of {run}, and this checkout is {here}"),
            (facts.clean and clean, "tracked files were changed, so the run is of no commit"),
            (facts.plugin == plugin_digest(), "the run used another pytest-ane than this one"),
            (dict(facts.gates) == gate_files(judging.parent),
             "the run used other files of gates than the base"),
            (self._reviewed or not changes,
             "what judges the run is changed, and nobody has reviewed it"),
            (not facts.exit_code, f"pytest ended with exit code {facts.exit_code}"),
        ):  # fmt: skip
            if not holds:
                yield problem

    @cached_property
    def _due(self) -> list[GateTest]:
        """Without the executor's arithmetic where a device ran the test: it has one of its own."""
        due = []
        for test in self._project.due({"gate"}):
            record = self._run.record(test._replace(arithmetic="typed"))
            backend = "cpu"
            if record is not None and record.measurement is not None:
                backend = record.environment.get("backend", "cpu")
            if test.arithmetic == "typed" or backend == "cpu":
                due.append(test)
        return due

    def _picked(self) -> list[GateTest]:
        """Drawn by the commit: the same ones in every run of the check."""
        costly = [
            test for test in self._due
            if GATES[test.gate].recordable and not GATES[test.gate].static
            and not self._subject(test.subject).policy.requires_evidence(test.gate)
        ]  # fmt: skip
        share = self._recheck if self._recheck >= 1 else self._recheck * len(costly)
        seed = hashlib.sha256(self._run.facts.commit.encode()).hexdigest()
        return random.Random(seed).sample(costly, min(len(costly), math.ceil(share)))

    def _subject(self, name: str) -> Subject:
        return self._manifest.shard(name) if ":" in name else self._manifest.model_of(name)

    def _verdict(self, test: GateTest, *, measure: bool) -> Verdict:
        gate, subject = GATES[test.gate], self._subject(test.subject)
        if gate.by_arithmetic:
            subject = subject.in_arithmetic((test.arithmetic,))
        try:
            return self._judged(gate, subject, measure=measure)
        except UnprovenError as error:
            reason, _, remedy = str(error).partition("; ")
            return nothing(gate.name, subject.qualified, reason, remedy)
        except AneError as error:
            return Verdict(gate.name, subject.qualified, findings=(Finding("failed", str(error)),))

    def _own(self, nodeid: str) -> Verdict:
        """Of a gate of the base's own, what the run says of it."""
        name, _, subject = nodeid.rpartition("::")[2].removesuffix("]").partition("[")
        found = [
            r.verdict for r in self._run.records if r.verdict and r.verdict.get("test") == nodeid
        ]
        passed = found and found[-1].get("outcome") == found[-1].get("status") == "passed"
        said = (
            "the run's test of it did not pass" if found else "due, and the run has no test of it"
        )
        findings = () if passed else (Finding("failed", said),)
        return Verdict(name.removeprefix("test_"), subject, findings=findings)

    def _judged(self, gate: Gate[Any], subject: Subject, *, measure: bool) -> Verdict:
        if (record := self._run.record(gate.test(subject))) is None or record.verdict is None:
            raise _RefusedError("due, and the run has no verdict of it")
        outcome, status = (record.verdict.get(name) for name in ("outcome", "status"))
        if outcome != "passed":
            raise _RefusedError(f"the run's test {outcome}, and its verdict was {status}")
        if subject.policy.requires_evidence(gate.name):
            return combined(self._answers(gate, subject))
        if gate.static or not gate.recordable:
            measured = self._measured(gate, subject)
            verdict = gate.judge(measured, gate.policy(subject.policy), subject)
            if gate.recorded_first and worst(found := self._answers(gate, subject)).error is None:
                recorded = combined(found)
                # What nobody asked for and only the pull request has never makes anything green.
                if self._is_of_base(gate, subject) or _is_worse(recorded, verdict):
                    return recorded
            return verdict
        record = self._believed(gate, subject, record)
        verdict = gate.judge(record.measurement, gate.policy(subject.policy), subject)
        if measure:
            verdict = self._measured_again(gate, subject, record, verdict)
        return verdict

    def _believed(self, gate: Gate[Any], subject: Subject, record: Record) -> Record:
        if record.measurement is None:
            raise _RefusedError("the run has no measurement of it")
        record = record.typed()
        if record.files != self._files(subject):
            raise _RefusedError("it was measured of other bytes than lie in this checkout")
        if record.asked != plain(self._question(gate, subject)):
            raise _RefusedError("its measurement answers another question than the base asks")
        computed = {
            label(getattr(record.measurement, "arithmetic", "typed")),
            record.environment.get("arithmetic", "typed"),
        }
        if computed != {label(gate.test(subject).arithmetic)}:
            raise _RefusedError(f"its measurement was computed as {', '.join(sorted(computed))}")
        if "native" in record.environment:
            raise _RefusedError("its measurement was answered by a replay")
        units = record.environment.get("compute_units", "")
        if gate.by_device and units in WITH_ANE and (kind := without_ane(record.environment)):
            raise _RefusedError(f"it was measured on {kind}, which proves nothing of the ANE")
        return record

    def _is_of_base(self, gate: Gate[Any], subject: Subject) -> bool:
        """Whether evidence is the base's, too, or was reviewed."""
        here, there = (Store(p.parent / FOLDER) for p in (self._base.head, self._base.path))
        name = subject.qualified
        return self._reviewed or all(
            here.read(gate.name, name, system) == there.read(gate.name, name, system)
            for system in systems_of(gate.name, subject)
        )

    def _answers(self, gate: Gate[Any], subject: Subject) -> list[Answer]:
        return answers(gate.name, subject, partial(self._recorded, gate, subject))

    def _recorded(self, gate: Gate[Any], subject: Subject, system: str) -> Record:
        store = Store(self._base.head.parent / FOLDER)
        record = EvidenceFile.at(store, gate.name, subject, system).verified(
            policy=subject.policy.evidence,
            now=datetime.now(timezone.utc),
            files=self._files(subject),
            asked=self._question(gate, subject),
            artifact=self._project.artifact(subject) if isinstance(subject, Shard) else None,
        )
        before = Store(self._base.path.parent / FOLDER).read(gate.name, subject.qualified, system)
        if before is not None:
            older = Record.from_json(before)
            if record.counter < older.counter:
                raise UnprovenError(
                    f"its evidence was rolled back: record {record.counter} stands in place of "
                    f"record {older.counter}"
                )
        return record

    def _measured_again(
        self, gate: Gate[Any], subject: Subject, record: Record, verdict: Verdict
    ) -> Verdict:
        measured = self._measured(gate, subject)
        if (again := gate.judge(measured, gate.policy(subject.policy), subject)).status != "passed":
            return again
        if lines := list(_far(gate.figures(record.measurement), gate.figures(measured))):
            reason = f"measured again, it differs from the run: {lines[0]}"
            return replace(verdict, findings=(Finding("failed", reason), *verdict.findings))
        return verdict

    def _measured(self, gate: Gate[Any], subject: Subject) -> Any:
        if isinstance(subject, Shard):
            return gate.measure(self._project.open_shard(subject))
        return gate.measure(self._project.stack(subject.name, gate.test(subject).arithmetic))

    def _question(self, gate: Gate[Any], subject: Subject) -> Mapping[str, Any]:
        model = self._manifest.model_of(subject.qualified.partition(":")[0])
        return question(gate.name, subject, model, lambda: self._project.model(model.name).identity)

    def _files(self, subject: Subject) -> dict[str, str]:
        shards = (subject,) if isinstance(subject, Shard) else subject.shards
        return files_of({shard.id: self._project.artifact(shard) for shard in shards})


def _is_worse(one: Verdict, other: Verdict) -> bool:
    return STATUSES.index(one.status) < STATUSES.index(other.status)


def _far(told: Sequence[Figure], measured: Sequence[Figure]) -> Iterator[str]:
    values = {figure.name: figure.value for figure in measured}
    for figure in told:
        then, now = figure.value, values.get(figure.name)
        numbers = isinstance(then, int | float) and isinstance(now, int | float)
        if numbers and abs(then - now) <= max(_LEAST, _SHARE * abs(now)):  # type: ignore[operator,arg-type]
            continue
        if then != now:
            yield f"{figure.name} {then} in the run, {now} measured"
