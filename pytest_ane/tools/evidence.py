"""`pytest-ane evidence`: list, show, verify, compare or prune evidence, or judge a run again.

`verify-run` is the required check of a pull request.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any

from pytest_ane.cli.options import add_project, add_shards, add_yes
from pytest_ane.cli.output import Failed, Output, confirmed, terminal_width
from pytest_ane.gates.base import Subject
from pytest_ane.gates.registry import GATES
from pytest_ane.mlprogram.arithmetic import SIMULATED
from pytest_ane.mlprogram.errors import AneError, EvidenceError
from pytest_ane.records.audit import Auditor, base_of
from pytest_ane.records.compare import compare
from pytest_ane.records.record import Record, simulated
from pytest_ane.records.run import read_run
from pytest_ane.records.store import Store, is_evidence
from pytest_ane.records.verify import judge, time_in_words
from pytest_ane.report.figures import amount
from pytest_ane.report.rows import Row
from pytest_ane.report.table import columns
from pytest_ane.report.terminal import table
from pytest_ane.report.verdict import failure, reasons, row, to_json
from pytest_ane.tools._compare_words import data, fault, lines
from pytest_ane.tools._inventory import Inventory

EXAMPLE = "pytest-ane evidence verify --shards L01"
_COLUMNS = ("subject", "gate", "age", "chip", "system", "units", "state")
_LONGEST = 300


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The action, where evidence is, and what `verify-run` holds a run against."""
    parser.add_argument(
        "action",
        choices=("list", "show", "verify", "compare", "prune", "verify-run"),
        help="list files, print one, hold them against today's policy, compare those of several "
        "systems or chips, delete unused ones, or judge a run again by the base branch's rules",
    )
    parser.add_argument(
        "what",
        nargs="*",
        help="show: an evidence file, a shard or a model; compare: more folders of evidence; "
        "verify-run: the file of --ane-report=run.jsonl",
    )
    parser.add_argument("--by", choices=("os", "chip"), help="compare: systems or chips")
    add_shards(parser, "verify, compare: which (default: all)")
    add_project(parser)
    parser.add_argument(
        "--evidence",
        "--ane-evidence",
        type=Path,
        metavar="DIR",
        help="default: the folder evidence next to the manifest",
    )
    parser.add_argument(
        "--rehash", "--ane-rehash", action="store_true", help="read unchanged files too"
    )
    add_yes(parser)
    parser.add_argument(
        "--policy-from",
        metavar="REF|DIR",
        help="verify-run: the base branch, a commit that git knows or a checkout of it",
    )
    parser.add_argument(
        "--recheck",
        type=_recheck,
        default=0.0,
        metavar="N|SHARE",
        help="verify-run: measure again so many of the measurements: 5, or 10%%; the commit picks "
        "them",
    )
    parser.add_argument(
        "--reviewed",
        action="store_true",
        help="verify-run: somebody has agreed to the changes of manifest, keys and gates: let the "
        "pull request's own manifest judge",
    )


def _recheck(text: str) -> float:
    """`5` measurements, or the share `10%` of them."""
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
    inventory = Inventory(options.manifest, options.evidence, options.cache)
    with inventory.project.use(rehash=options.rehash):
        return (yield from _ACTIONS[action](inventory, options))


def _fault(options: argparse.Namespace) -> str:
    """What is wrong with the arguments of an action; empty where nothing is."""
    action, count, base = options.action, len(options.what), options.policy_from
    if action == "show" and count != 1:
        return "needs an evidence file, a shard or a model" if not count else "takes one alone"
    if action == "verify-run" and (count != 1 or base is None):
        return "needs the file of one run and --policy-from REF"
    if action not in ("show", "compare", "verify-run") and count:
        return "takes no file"
    if (action == "compare") != (options.by is not None):
        return "needs --by os or --by chip" if action == "compare" else "takes no --by"
    return "takes no --policy-from" if base is not None and action != "verify-run" else ""


def _list(inventory: Inventory, options: argparse.Namespace) -> Output:
    """A table of the evidence files of shards and their state; then the unused files."""
    store, used = inventory.store, inventory.used
    files = [path for path in store.files() if path in used or is_evidence(path)]
    rows = {path: _columns(inventory, path) for path in files if path in used}
    unused = [path for path in files if path not in used]
    yield from columns([_COLUMNS, *rows.values()] if rows else [], words=len(_COLUMNS))
    yield from (f"unused {path}" for path in unused)
    yield f"{_files(len(files))} in {store.folder}"
    listed = [{"file": path, **dict(zip(_COLUMNS, row, strict=True))} for path, row in rows.items()]
    return {"folder": store.folder, "files": listed, "unused": unused}


def _columns(inventory: Inventory, path: Path) -> tuple[str, ...]:
    gate, subject, _ = inventory.used[path]
    try:
        record = inventory.read(path)
    except EvidenceError:
        facts = [""] * 4
    else:
        environment = dict(record.environment) | ({"chip": SIMULATED} if simulated(record) else {})
        keys = ("chip", "os", "compute_units")
        facts = [_age(inventory, record), *(environment.get(key, "") for key in keys)]
    return (subject.qualified, gate, *facts, inventory.state(path))


def _show(inventory: Inventory, options: argparse.Namespace) -> Output:
    """Records in words, each with the verdict on it today."""
    shown: list[dict[str, Any]] = []
    for path in inventory.paths(options.what[0]):
        yield from ("",) if shown else ()
        record = inventory.read(path)
        yield from _record(inventory, record)
        verdict = None
        if (subject := inventory.used.get(path)) is None:
            yield "verdict        none: no shard of the manifest uses this file"
        else:
            verdict = yield from _worth(inventory, *subject)
        data = json.loads(record.to_json())
        shown.append({"file": path, "record": data, "verdict": verdict})
    return shown


def _record(inventory: Inventory, record: Record) -> Iterator[str]:
    yield f"{record.subject} {record.gate}"
    yield f"recorded       {record.time:%Y-%m-%d %H:%M} UTC, {_age(inventory, record)} ago"
    yield f"of             {_files(len(record.files))}, {next(iter(record.files))} first"
    for key, value in sorted(record.environment.items()):
        yield f"{key:<14} {value}"
    if record.asked:
        text = json.dumps(record.asked, sort_keys=True)
        yield f"asked          {text if len(text) <= _LONGEST else f'{text[:_LONGEST]}...'}"
    for figure in GATES[record.gate].figures(record.measurement):
        yield f"  {figure.name}: {amount(figure.value, figure.unit)}"


def _age(inventory: Inventory, record: Record) -> str:
    return time_in_words(max(inventory.now, record.time) - record.time)


def _worth(
    inventory: Inventory, gate: str, subject: Subject, system: str
) -> Generator[str, None, dict[str, Any]]:
    try:
        verdict = judge(inventory.verified(gate, subject, system), subject)
    except AneError as error:
        yield f"verdict        unproven: {error}"
        return {"status": "unproven", "error": str(error)}
    yield f"verdict        {verdict.status}: {row(verdict)}"
    yield from (f"  - {reason}" for reason in reasons(verdict))
    return to_json(verdict)


def _verify(inventory: Inventory, options: argparse.Namespace) -> Output:
    """All gates whose policy requires a device's evidence, judged."""
    required = inventory.required(options.shards)
    if not required:
        raise EvidenceError(
            "No policy of the selected shards requires evidence, so nothing was verified; it is "
            'required by policy.placement.require = "plan" and policy.fidelity.require or '
            'policy.behaviour.require = "device".'
        )
    verdicts = [(inventory.proven(gate, subject), subject) for gate, subject in required]
    rows = [
        Row(v.gate, v.subject, v.status, row(v), warned=v.status == "passed" and bool(v.warnings))
        for v, _ in verdicts
    ]
    width = (terminal_width() or 10_000) - 1
    yield from (line.text for line in table(rows, width=width, everything=True))
    bad = [(v, subject) for v, subject in verdicts if v.status != "passed"]
    for verdict, _ in bad:
        yield from ("", *failure(verdict).split("\n"))
    data = {"verdicts": [to_json(verdict) for verdict, _ in verdicts]}
    red = [v for v, subject in bad if v.status == "failed" or subject.policy.unproven == "fail"]
    return Failed(f"{len(red)} of {len(verdicts)} verdicts are red.", data) if red else data


def _compare(inventory: Inventory, options: argparse.Namespace) -> Output:
    """What differs between systems, or chips, of evidence in the manifest's folder and others."""
    for folder in map(Path, options.what):
        if not folder.is_dir():
            raise EvidenceError(f"{folder} is no folder; name one with evidence in it.")
    folders = {path.resolve(): path for path in (inventory.store.folder, *map(Path, options.what))}
    found = inventory.comparable([*map(Store, folders.values())], options.shards)
    comparison = compare(found, options.by)
    yield from lines(comparison, terminal_width())
    says = fault(comparison)
    return Failed(says, data(comparison)) if says else data(comparison)


def _prune(inventory: Inventory, options: argparse.Namespace) -> Output:
    """Delete records that no shard uses, after a list of them and a yes."""
    unused, folder = inventory.unused(), inventory.store.folder
    data = {"folder": folder, "unused": unused, "removed": 0}
    if not unused:
        yield f"no unused file in {folder}"
        return data
    yield from (f"unused {path}" for path in unused)
    if not confirmed(f"Delete {_files(len(unused))}?", options):
        yield (
            f"{_files(len(unused))} would be deleted; nothing was: "
            "pytest-ane evidence prune --yes deletes them"
        )
        return data
    for path in filter(is_evidence, unused):  # A file may have changed since it was listed.
        try:
            path.unlink()
        except OSError as error:
            raise EvidenceError(f"{path} cannot be removed: {error.strerror}.") from None
    yield f"{_files(len(unused))} removed from {folder}"
    return {**data, "removed": len(unused)}


_ACTIONS = {
    "list": _list, "show": _show, "verify": _verify, "compare": _compare, "prune": _prune,
}  # fmt: skip


def _verify_run(options: argparse.Namespace) -> Output:
    """Judge a run; fails where anything is red, and where what judges is changed unreviewed."""
    if not sys.flags.isolated:
        raise EvidenceError(
            "verify-run would import what lies in the pull request; run it isolated: "
            "python -I -m pytest_ane.cli evidence verify-run ..."
        )
    recorded = read_run(Path(options.what[0]))
    with base_of(options.policy_from, options.manifest or Path("shards.toml")) as base:
        auditor = Auditor(
            recorded, base, cache=options.cache, reviewed=options.reviewed, recheck=options.recheck
        )
        audit = auditor.audit()
    rows = [
        Row(v.gate, v.subject, v.status, row(v), allowed=auditor.allows(v)) for v in audit.verdicts
    ]
    yield from (line.text for line in table(rows, width=terminal_width()))
    yield from (f"changed: {line}" for line in audit.changes)
    yield f"measured again: {', '.join(audit.rechecked) or 'nothing'}"
    wrong = [*audit.problems, *(f"{r.gate} {r.subject}: {r.summary}" for r in rows if r.red)]
    data = {"problems": audit.problems, "changes": audit.changes, "rechecked": audit.rechecked,
            "verdicts": rows}  # fmt: skip
    if wrong:
        return Failed("\n".join(("the run does not count", *(f"  - {x}" for x in wrong))), data)
    yield "the run counts"
    return data


def _files(count: int) -> str:
    return f"{count} file{'' if count == 1 else 's'}"
