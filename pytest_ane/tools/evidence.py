"""`pytest-ane evidence`: list, show, verify, compare or prune evidence, or judge a run again.

`verify-run` is the required check of a pull request.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import datetime, timezone
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import Any, TypeAlias

from pytest_ane.cli.options import add_shared
from pytest_ane.cli.output import Failed, Output, confirmed, terminal_width
from pytest_ane.gates.base import Subject
from pytest_ane.gates.registry import GATES, recordable
from pytest_ane.gates.verdict import Verdict, counted, nothing
from pytest_ane.make import Artifact
from pytest_ane.manifest import Model, Shard, select
from pytest_ane.manifest.ids import without_function
from pytest_ane.mlprogram.arithmetic import SIMULATED
from pytest_ane.mlprogram.errors import AneError, BuildError, EvidenceError, UnprovenError
from pytest_ane.project.choose import is_complete
from pytest_ane.project.project import read_project
from pytest_ane.records.audit import Auditor, base_of
from pytest_ane.records.compare import Recorded, Skipped, compare
from pytest_ane.records.record import Record, files_of, question, read_file, simulated
from pytest_ane.records.run import read_run
from pytest_ane.records.store import FOLDER, Store, is_evidence
from pytest_ane.records.verify import EvidenceFile, answers, combined, judge, time_in_words
from pytest_ane.report.run import Row
from pytest_ane.report.table import amount, columns
from pytest_ane.report.terminal import table
from pytest_ane.report.verdict import failure, reasons, row, to_json
from pytest_ane.tools._compare_words import data, fault, lines

EXAMPLE = "pytest-ane evidence verify --shards L01"
_COLUMNS = ("subject", "gate", "age", "chip", "system", "units", "state")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The action, where evidence is, and what `verify-run` holds a run against."""
    add = parser.add_argument
    words = (
        "list files, print one, hold them against today's policy, compare those of several "
        "systems or chips, delete unused ones, or judge a run again by the base branch's rules"
    )
    add("action", choices=("list", "show", "verify", "compare", "prune", "verify-run"), help=words)
    words = (
        "show: an evidence file, a shard or a model; compare: more folders of evidence; "
        "verify-run: the file of --ane-report=run.jsonl"
    )
    add("what", nargs="*", help=words)
    add("--by", choices=("os", "chip"), help="compare: systems or chips")
    add_shared(parser, "shards", help="verify, compare: which (default: all)")
    add_shared(parser, "manifest", "cache")
    words = "default: the folder evidence next to the manifest"
    add("--evidence", "--ane-evidence", type=Path, metavar="DIR", help=words)
    add("--rehash", "--ane-rehash", action="store_true", help="read unchanged files too")
    add("--yes", action="store_true", help="prune: delete without a question")
    words = "verify-run: the base branch, a commit that git knows or a checkout of it"
    add("--policy-from", metavar="REF|DIR", help=words)
    words = "verify-run: measure so many again, 5 or 10%% of all; the commit picks them"
    add("--recheck", type=_recheck, default=0.0, metavar="N|SHARE", help=words)
    words = (
        "verify-run: somebody has agreed to the changes of manifest, keys and gates: let the pull "
        "request's own manifest judge"
    )
    add("--reviewed", action="store_true", help=words)


def _recheck(text: str) -> float:
    try:
        value = float(text.removesuffix("%")) / (100 if text.endswith("%") else 1)
    except ValueError:
        value = -1.0
    if not 0 <= value <= 100_000 or (text.endswith("%") and value > 1):
        raise argparse.ArgumentTypeError(
            f"{text!r}: give a number such as 5, or a share such as 10%"
        )
    # A whole share is everything, not one.
    return 1e5 if text.endswith("%") and value == 1 else value


def run(options: argparse.Namespace) -> Output:
    """Look at recorded evidence; only `prune` deletes anything, and nothing is built.

    It fails where `verify` or `verify-run` finds anything red, and where `compare` finds nothing
    to compare, or a gate that passes on one side alone.
    """
    action = options.action
    if fault := _fault(options):
        raise EvidenceError(f"evidence {action} {fault}; pytest-ane evidence --help shows how.")
    if action == "verify-run":
        return (yield from _verify_run(options))
    inventory = _Inventory(options)
    with inventory.project.use(rehash=options.rehash):
        return (yield from _ACTIONS[action](inventory, options))


def _fault(options: argparse.Namespace) -> str:
    action, count, base = options.action, len(options.what), options.policy_from
    if action == "show" and count != 1:
        return "needs one evidence file, shard or model"
    if action == "verify-run" and (count != 1 or base is None):
        return "needs the file of one run and --policy-from REF"
    if action not in ("show", "compare", "verify-run") and count:
        return "takes no file"
    if (action == "compare") != (options.by is not None):
        return "needs --by os or --by chip" if action == "compare" else "takes no --by"
    return "takes no --policy-from" if base is not None and action != "verify-run" else ""


_Today: TypeAlias = tuple[Mapping[str, str], Mapping[str, Any], Artifact | None]
"""Digests of what is built, the question, and a shard's package."""


class _Inventory:
    """The evidence files of a project, and what each is worth; nothing is built."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.project = read_project(options.manifest, options.cache)
        self.manifest = self.project.manifest
        self.store = Store(options.evidence or self.manifest.path.parent / FOLDER)
        self.used = self.store.used(self.manifest)
        self.now = datetime.now(timezone.utc)

    def paths(self, what: str) -> list[Path]:
        if (path := Path(what)).is_file():
            same = (used for used in self.used if used.exists() and used.samefile(path))
            return [next(same, path)]
        files = [p for p, (_, s, _) in self.used.items() if what in _names(s) and p.is_file()]
        if not files:
            raise EvidenceError(
                f"{what} is neither an evidence file nor a shard or model with evidence in "
                f"{self.store.folder}; pytest-ane evidence list shows what there is."
            )
        return files

    def read(self, path: Path) -> Record:
        try:
            return Record.from_json(read_file(path) or b"")
        except EvidenceError as error:
            raise EvidenceError(f"{path}: {str(error).removeprefix(f'{path} ')}") from None

    def age(self, record: Record) -> str:
        return time_in_words(max(self.now, record.time) - record.time)

    def state(self, path: Path) -> str:
        try:
            self.verified(*self.used[path])
        except AneError as error:
            other = "not built" if isinstance(error, BuildError) else "unknown"
            return error.kind if isinstance(error, UnprovenError) else other
        return "valid"

    def recordable(self, selection: str) -> list[tuple[str, Subject]]:
        shards = select(self.manifest, selection)
        chosen = {shard.qualified for shard in shards}
        complete = [model for model in self.manifest.models if is_complete(model, chosen)]
        return [
            *((g.name, shard) for shard in shards for g in recordable("shard") if g.asks(shard)),
            *((g.name, model) for model in complete for g in recordable("model")),
        ]

    def comparable(self, stores: Sequence[Store], selection: str) -> Iterator[Recorded | Skipped]:
        """Evidence of selected shards in several folders, for `compare`; what does not count too.

        What is built is held against the package; what is not, against other evidence alone. The
        policy's systems, chips and age are left out.
        """
        for gate, subject in self.recordable(selection):
            if not GATES[gate].by_device:  # It would be the same on any machine.
                continue
            policy = subject.policy.evidence
            policy = policy.model_copy(update={"chips": None, "os": None, "max_age": None})
            paths = [path for store in stores for path in store.all(gate, subject.qualified)]
            today: _Today | None = None
            with suppress(AneError):
                today = self._today(gate, subject) if paths else None
            files, asked, artifact = today or (None, None, None)
            for path in paths:
                try:
                    found = EvidenceFile(path, gate, subject).verified(
                        policy=policy, now=self.now, files=files, asked=asked, artifact=artifact
                    )
                    digest = sha256(found.to_json().encode()).hexdigest()
                    yield Recorded(path, digest, found, subject, is_held=today is not None)
                except UnprovenError as error:
                    yield Skipped(path, error.kind, str(error))
        for store in stores:
            yield from (Skipped(path, "unused") for path in store.unused(self.manifest))

    def proven(self, gate: str, subject: Subject) -> Verdict:
        try:
            return combined(answers(gate, subject, partial(self.verified, gate, subject)))
        except AneError as error:
            reason, _, remedy = str(error).partition("; ")
            return nothing(gate, subject.qualified, reason, remedy)

    def verified(self, gate: str, subject: Subject, system: str = "") -> Record:
        files, asked, artifact = self._today(gate, subject)
        return EvidenceFile.at(self.store, gate, subject, system).verified(
            policy=subject.policy.evidence, now=self.now, files=files, asked=asked,
            artifact=artifact,
        )  # fmt: skip

    def _today(self, gate: str, subject: Subject) -> _Today:
        model = self.manifest.model_of(subject.qualified.partition(":")[0])
        shards = model.shards if isinstance(subject, Model) else (subject,)
        artifacts = {shard.id: self._artifact(shard) for shard in shards}
        asked = question(gate, subject, model, lambda: self.project.model(model.name).identity)
        artifact = artifacts[subject.id] if isinstance(subject, Shard) else None
        return files_of(artifacts), asked, artifact

    def _artifact(self, shard: Shard) -> Artifact:
        package = self.project.package(shard)
        if package is None:
            raise BuildError(
                f"{shard.qualified} is not built, and nothing is built here; run: "
                f"pytest --ane-shards={shard.qualified} -m gate"
            )
        if not package.exists():
            raise BuildError(f"{shard.qualified}: the artifact {package} does not exist.")
        return Artifact(package)


def _names(subject: Subject) -> tuple[str, ...]:
    name = subject.qualified
    if not isinstance(subject, Shard):
        return (name,)
    return (name, subject.id, *(without_function(each)[0] for each in (name, subject.id)))


def _list(inventory: _Inventory, options: argparse.Namespace) -> Output:
    store, used = inventory.store, inventory.used
    files = [path for path in store.files() if path in used or is_evidence(path)]
    rows = {path: _columns(inventory, path) for path in files if path in used}
    unused = [path for path in files if path not in used]
    yield from columns([_COLUMNS, *rows.values()] if rows else [], words=len(_COLUMNS))
    yield from (f"unused {path}" for path in unused)
    yield f"{counted(len(files), 'file')} in {store.folder}"
    listed = [{"file": path, **dict(zip(_COLUMNS, row, strict=True))} for path, row in rows.items()]
    return {"folder": store.folder, "files": listed, "unused": unused}


def _columns(inventory: _Inventory, path: Path) -> tuple[str, ...]:
    gate, subject, _ = inventory.used[path]
    facts = [""] * 4
    with suppress(EvidenceError):
        record = inventory.read(path)
        environment = dict(record.environment) | ({"chip": SIMULATED} if simulated(record) else {})
        keys = ("chip", "os", "compute_units")
        facts = [inventory.age(record), *(environment.get(key, "") for key in keys)]
    return (subject.qualified, gate, *facts, inventory.state(path))


def _show(inventory: _Inventory, options: argparse.Namespace) -> Output:
    shown: list[dict[str, Any]] = []
    for path in inventory.paths(options.what[0]):
        record = inventory.read(path)
        yield f"{record.subject} {record.gate}"
        yield f"recorded       {record.time:%Y-%m-%d %H:%M} UTC, {inventory.age(record)} ago"
        first, *_ = record.files
        yield f"of             {counted(len(record.files), 'file')}, {first} first"
        for key, value in sorted(record.environment.items()):
            yield f"{key:<14} {value}"
        if record.asked:
            yield f"asked          {json.dumps(record.asked, sort_keys=True)}"
        for figure in GATES[record.gate].figures(record.measurement):
            yield f"  {figure.name}: {amount(figure.value, figure.unit)}"
        verdict = yield from _worth(inventory, path)
        shown.append({"file": path, "record": json.loads(record.to_json()), "verdict": verdict})
    return shown


def _worth(inventory: _Inventory, path: Path) -> Output:
    if path not in inventory.used:
        yield "verdict        none: no shard of the manifest uses this file"
        return None
    gate, subject, system = inventory.used[path]
    try:
        verdict = judge(inventory.verified(gate, subject, system), subject)
    except AneError as error:
        yield f"verdict        unproven: {error}"
        return {"status": "unproven", "error": str(error)}
    yield f"verdict        {verdict.status}: {row(verdict)}"
    yield from (f"  - {reason}" for reason in reasons(verdict))
    return to_json(verdict)


def _verify(inventory: _Inventory, options: argparse.Namespace) -> Output:
    required = [
        (gate, subject)
        for gate, subject in inventory.recordable(options.shards)
        if subject.policy.requires_evidence(gate)
    ]
    if not required:
        raise EvidenceError(
            "No policy of the selected shards requires evidence, so nothing was verified; it is "
            'required by policy.placement.require = "plan" and policy.fidelity.require or '
            'policy.behaviour.require = "device".'
        )
    verdicts = [(inventory.proven(gate, subject), subject) for gate, subject in required]
    rows = [_row(verdict) for verdict, _ in verdicts]
    width = (terminal_width() or 10_000) - 1
    yield from (line.text for line in table(rows, width=width, everything=True))
    bad = [(v, subject) for v, subject in verdicts if v.status != "passed"]
    for verdict, _ in bad:
        yield from ("", *failure(verdict).split("\n"))
    data = {"verdicts": [to_json(verdict) for verdict, _ in verdicts]}
    red = [v for v, subject in bad if v.status == "failed" or subject.policy.unproven == "fail"]
    return Failed(f"{len(red)} of {len(verdicts)} verdicts are red.", data) if red else data


def _row(verdict: Verdict, *, allowed: bool = False) -> Row:
    warned = verdict.status == "passed" and bool(verdict.warnings)
    return Row(verdict.gate, verdict.subject, verdict.status, row(verdict), warned, allowed)


def _compare(inventory: _Inventory, options: argparse.Namespace) -> Output:
    for folder in map(Path, options.what):
        if not folder.is_dir():
            raise EvidenceError(f"{folder} is no folder; name one with evidence in it.")
    folders = {path.resolve(): path for path in (inventory.store.folder, *map(Path, options.what))}
    found = inventory.comparable([*map(Store, folders.values())], options.shards)
    comparison = compare(found, options.by)
    yield from lines(comparison, terminal_width())
    says = fault(comparison)
    return Failed(says, data(comparison)) if says else data(comparison)


def _prune(inventory: _Inventory, options: argparse.Namespace) -> Output:
    unused, folder = inventory.store.unused(inventory.manifest), inventory.store.folder
    data, files = {"folder": folder, "unused": unused, "removed": 0}, counted(len(unused), "file")
    yield from (f"unused {path}" for path in unused)
    if unused and not confirmed(f"Delete {files}?", options):
        yield f"{files} would be deleted; nothing was: pytest-ane evidence prune --yes deletes them"
        return data
    for path in filter(is_evidence, unused):  # A file may have changed since it was listed.
        try:
            path.unlink()
        except OSError as error:
            raise EvidenceError(f"{path} cannot be removed: {error.strerror}.") from None
    yield f"{files} removed from {folder}"
    return {**data, "removed": len(unused)}


_ACTIONS = {"list": _list, "show": _show, "verify": _verify, "compare": _compare, "prune": _prune}


def _verify_run(options: argparse.Namespace) -> Output:
    recorded = read_run(Path(options.what[0]))
    with base_of(options.policy_from, options.manifest or Path("shards.toml")) as base:
        auditor = Auditor(
            recorded, base, cache=options.cache, reviewed=options.reviewed, recheck=options.recheck
        )
        audit = auditor.audit()
    rows = [_row(verdict, allowed=auditor.allows(verdict)) for verdict in audit.verdicts]
    yield from (line.text for line in table(rows, width=terminal_width()))
    yield from (f"changed: {line}" for line in audit.changes)
    yield from (f"evidence: {line}" for line in audit.evidence)
    yield f"measured again: {', '.join(audit.rechecked) or 'nothing'}"
    wrong = [*audit.problems, *(f"{r.gate} {r.subject}: {r.summary}" for r in rows if r.red)]
    data = {"problems": audit.problems, "changes": audit.changes, "evidence": audit.evidence,
            "rechecked": audit.rechecked, "verdicts": rows}  # fmt: skip
    if wrong:
        return Failed("\n".join(("the run does not count", *(f"  - {x}" for x in wrong))), data)
    yield "the run counts"
    return data
