"""`pytest-ane evidence list`, `show`, `verify`, `compare` and `prune`."""

from __future__ import annotations

import argparse
import json
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pytest_ane.cli.options import add_project, add_shards, add_yes
from pytest_ane.cli.output import Failed, Output, confirmed, terminal_width
from pytest_ane.mlprogram.arithmetic import SIMULATED
from pytest_ane.mlprogram.errors import AneError, EvidenceError

if TYPE_CHECKING:
    from pytest_ane.gates.base import Subject
    from pytest_ane.gates.verdict import Verdict
    from pytest_ane.records.record import Record
    from pytest_ane.report.rows import Row
    from pytest_ane.tools._inventory import Inventory

HELP = "list, show, verify, compare or prune the evidence that a Mac recorded"
EXAMPLE = "pytest-ane evidence verify --shards L01"
_COLUMNS = ("subject", "gate", "age", "chip", "system", "units", "state")
_LONGEST = 300


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The action, and where evidence is."""
    parser.add_argument(
        "action",
        choices=("list", "show", "verify", "compare", "prune"),
        help="list files, print one, hold them against today's policy, compare those of several "
        "systems or chips, or delete unused ones",
    )
    parser.add_argument(
        "what",
        nargs="*",
        help="show: an evidence file, a shard or a model; compare: more folders of evidence",
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


def run(options: argparse.Namespace) -> Output:
    """Look at recorded evidence; only `prune` deletes anything, and nothing is built.

    It fails where `verify` finds anything red, and where `compare` finds nothing to compare, or a
    gate that passes on one side alone.
    """
    from pytest_ane.tools._inventory import Inventory

    action, what = options.action, options.what
    if fault := _fault(options):
        raise EvidenceError(f"evidence {action} {fault}; pytest-ane evidence --help shows how.")
    inventory = Inventory(options.manifest, options.evidence, options.cache)
    with inventory.project.use(rehash=options.rehash):
        if action == "list":
            return (yield from _list(inventory))
        if action == "verify":
            return (yield from _verify(inventory, options.shards))
        if action == "prune":
            return (yield from _prune(inventory, options))
        if action == "compare":
            return (yield from _compare(inventory, options))
        return (yield from _show(inventory, what[0]))


def _fault(options: argparse.Namespace) -> str:
    """What is wrong with the arguments of an action; empty where nothing is."""
    action, count = options.action, len(options.what)
    if action == "show" and count != 1:
        return "needs an evidence file, a shard or a model" if not count else "takes one alone"
    if action not in ("show", "compare") and count:
        return "takes no file"
    if (action == "compare") != (options.by is not None):
        return "needs --by os or --by chip" if action == "compare" else "takes no --by"
    return ""


def _list(inventory: Inventory) -> Output:
    """A table of the evidence files of shards and their state; then the unused files."""
    from pytest_ane.records.store import is_evidence
    from pytest_ane.report.table import columns

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
    from pytest_ane.records.record import simulated

    gate, subject, _ = inventory.used[path]
    state = inventory.state(path)
    try:
        record = inventory.read(path)
    except EvidenceError:
        return (subject.qualified, gate, *("" for _ in _COLUMNS[3:]), state)
    environment = dict(record.environment)
    if simulated(record):
        environment["chip"] = SIMULATED
    return (
        subject.qualified,
        gate,
        _age(inventory, record),
        *(environment.get(key, "") for key in ("chip", "os", "compute_units")),
        state,
    )


def _show(inventory: Inventory, what: str) -> Output:
    """Records in words, each with the verdict on it today."""
    shown: list[dict[str, Any]] = []
    for path in inventory.paths(what):
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
    from pytest_ane.gates.registry import GATES
    from pytest_ane.report.figures import amount

    age = _age(inventory, record)
    yield f"{record.subject} {record.gate}"
    yield f"recorded       {record.time:%Y-%m-%d %H:%M} UTC, {age} ago"
    yield f"of             {_files(len(record.files))}, {next(iter(record.files))} first"
    for key, value in sorted(record.environment.items()):
        yield f"{key:<14} {value}"
    if record.asked:
        text = json.dumps(record.asked, sort_keys=True)
        yield f"asked          {text if len(text) <= _LONGEST else f'{text[:_LONGEST]}...'}"
    for figure in GATES[record.gate].figures(record.measurement):
        yield f"  {figure.name}: {amount(figure.value, figure.unit)}"


def _age(inventory: Inventory, record: Record) -> str:
    from pytest_ane.records.verify import time_in_words

    return time_in_words(max(inventory.now, record.time) - record.time)


def _worth(
    inventory: Inventory, gate: str, subject: Subject, system: str
) -> Generator[str, None, dict[str, Any]]:
    from pytest_ane.records.verify import judge

    try:
        verdict = judge(inventory.verified(gate, subject, system), subject)
    except AneError as error:
        yield f"verdict        unproven: {error}"
        return {"status": "unproven", "error": str(error)}
    from pytest_ane.report.verdict import reasons, row, to_json

    yield f"verdict        {verdict.status}: {row(verdict)}"
    yield from (f"  - {reason}" for reason in reasons(verdict))
    return to_json(verdict)


def _verify(inventory: Inventory, selection: str) -> Output:
    """All gates whose policy requires a device's evidence, judged."""
    from pytest_ane.report.terminal import table
    from pytest_ane.report.verdict import failure, to_json

    required = inventory.required(selection)
    if not required:
        raise EvidenceError(
            "No policy of the selected shards requires evidence, so nothing was verified; it is "
            'required by policy.placement.require = "plan" and policy.fidelity.require or '
            'policy.behaviour.require = "device".'
        )
    verdicts = [(inventory.proven(gate, subject), subject) for gate, subject in required]
    width = (terminal_width() or 10_000) - 1
    rows = table([_row(v) for v, _ in verdicts], width=width, everything=True)
    yield from (line.text for line in rows)
    bad = [(v, subject) for v, subject in verdicts if v.status != "passed"]
    for verdict, _ in bad:
        yield from ("", *failure(verdict).split("\n"))
    data = {"verdicts": [to_json(verdict) for verdict, _ in verdicts]}
    red = [v for v, subject in bad if v.status == "failed" or subject.policy.unproven == "fail"]
    return Failed(f"{len(red)} of {len(verdicts)} verdicts are red.", data) if red else data


def _compare(inventory: Inventory, options: argparse.Namespace) -> Output:
    """What differs between systems, or chips, of evidence in the manifest's folder and others."""
    from pytest_ane.records.compare import compare
    from pytest_ane.records.store import Store
    from pytest_ane.tools._compare_words import data, lines, nothing, red

    for folder in map(Path, options.what):
        if not folder.is_dir():
            raise EvidenceError(f"{folder} is no folder; name one with evidence in it.")
    folders = {path.resolve(): path for path in (inventory.store.folder, *map(Path, options.what))}
    found = inventory.comparable([*map(Store, folders.values())], options.shards)
    comparison = compare(found, options.by)
    yield from lines(comparison, terminal_width())
    if not comparison.compared:
        return Failed(nothing(comparison), data(comparison))
    says = red(comparison)
    return Failed(says, data(comparison)) if says else data(comparison)


def _row(verdict: Verdict) -> Row:
    from pytest_ane.report.rows import Row
    from pytest_ane.report.verdict import row

    warned = verdict.status == "passed" and bool(verdict.warnings)
    return Row(verdict.gate, verdict.subject, verdict.status, row(verdict), warned=warned)


def _prune(inventory: Inventory, options: argparse.Namespace) -> Output:
    """Delete records that no shard uses, after a list of them and a yes."""
    from pytest_ane.records.store import is_evidence

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


def _files(count: int) -> str:
    return f"{count} file{'' if count == 1 else 's'}"
