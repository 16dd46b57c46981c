"""`pytest-ane evidence list`, `show`, `verify` and `prune`."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_ane.cli.confirm import confirmed
from pytest_ane.core.errors import AneError, EvidenceError, UnprovenError

if TYPE_CHECKING:
    from pytest_ane.cli.inventory import Inventory
    from pytest_ane.core.verdict import Verdict
    from pytest_ane.evidence import Statement
    from pytest_ane.gates import Subject
    from pytest_ane.report.rows import Row

_COLUMNS = ("subject", "gate", "age", "chip", "system", "units", "state")
_LONGEST = 300


def run(
    action: str,
    what: str | None,
    *,
    manifest: Path | None,
    folder: Path | None,
    cache: Path | None,
    shards: str,
    rehash: bool,
    yes: bool,
) -> Iterator[str]:
    """Look at recorded evidence; only `prune` deletes anything, and nothing is built.

    Args:
        action: `list`, `show`, `verify` or `prune`.
        what: for `show`, an evidence file, a shard or a model.
        manifest: default `shards.toml` here.
        folder: where evidence is; default `evidence` beside the manifest.
        cache: the cache folder, where built shards are.
        shards: for `verify`, a selection as `--ane-shards` takes it.
        rehash: read every file, changed or not.
        yes: for `prune`, delete without a question.

    Raises:
        AneError: one sentence, also where `verify` finds anything red.
    """
    from pytest_ane.cli.inventory import Inventory

    if (action == "show") != (what is not None):
        needs = "needs an evidence file, a shard or a model" if what is None else "takes no file"
        raise EvidenceError(f"evidence {action} {needs}; pytest-ane evidence --help shows how.")
    inventory = Inventory(manifest, folder, cache)
    with inventory.project.remembering(rehash=rehash):
        if action == "list":
            yield from _list(inventory)
        elif action == "verify":
            yield from _verify(inventory, shards)
        elif action == "prune":
            yield from _prune(inventory, yes)
        else:
            yield from _show(inventory, what or "")


def _list(inventory: Inventory) -> Iterator[str]:
    """A table of the evidence files of shards, what each is worth at its end; then the others."""
    from pytest_ane.evidence.unused import is_evidence
    from pytest_ane.report.table import columns

    store, used = inventory.store, inventory.used
    files = [path for path in store.files() if path in used or is_evidence(path)]
    rows = [_COLUMNS, *(_columns(inventory, path) for path in files if path in used)]
    if len(rows) > 1:
        yield from columns(rows, words=len(_COLUMNS))
    yield from (f"unused {path}" for path in files if path not in inventory.used)
    yield f"{_files(len(files))} in {inventory.store.folder}"


def _columns(inventory: Inventory, path: Path) -> tuple[str, ...]:
    from pytest_ane.evidence.judge import replayed
    from pytest_ane.evidence.verify import time_in_words

    gate, subject = inventory.used[path]
    try:
        found = inventory.read(path)
    except EvidenceError:
        return (subject.qualified, gate, *("" for _ in _COLUMNS[3:]), inventory.state(path))
    env = found.environment
    return (
        subject.qualified,
        gate,
        time_in_words(max(inventory.now, found.recorded) - found.recorded),
        *(env.get(key, "") for key in ("chip", "os", "compute_units")),
        "replayed" if (state := inventory.state(path)) == "valid" and replayed(found) else state,
    )


def _show(inventory: Inventory, what: str) -> Iterator[str]:
    """Statements in words, and what they are worth now."""
    paths = inventory.paths(what)
    for number, path in enumerate(paths):
        yield from ("",) if number else ()
        yield from _statement(inventory, inventory.read(path))
        if (known := inventory.used.get(path)) is None:
            yield "verdict        none: no shard of the manifest uses this file"
        else:
            yield from _worth(inventory, *known)


def _statement(inventory: Inventory, found: Statement) -> Iterator[str]:
    from pytest_ane.evidence.verify import time_in_words
    from pytest_ane.gates import GATES
    from pytest_ane.report.figures import amount

    age = time_in_words(max(inventory.now, found.recorded) - found.recorded)
    yield f"{found.subject} {found.gate}"
    yield f"recorded       {found.recorded:%Y-%m-%d %H:%M} UTC, {age} ago"
    yield f"of             {_files(len(found.files))}, {next(iter(found.files))} first"
    for key, value in sorted(found.environment.items()):
        yield f"{key:<14} {value}"
    if found.asked:
        text = json.dumps(found.asked, sort_keys=True)
        yield f"asked          {text if len(text) <= _LONGEST else f'{text[:_LONGEST]}...'}"
    for figure in GATES[found.gate].figures(found.measurement):
        yield f"  {figure.name}: {amount(figure.value, figure.unit)}"


def _worth(inventory: Inventory, gate: str, subject: Subject) -> Iterator[str]:
    try:
        verdict = inventory.verdict(gate, subject)
    except AneError as error:
        yield f"verdict        unproven: {error}"
        return
    from pytest_ane.report.verdict import reasons, row

    yield f"verdict        {verdict.status}: {row(verdict)}"
    yield from (f"  - {reason}" for reason in reasons(verdict))


def _verify(inventory: Inventory, selection: str) -> Iterator[str]:
    """All gates whose policy asks for a device's evidence, judged; raises where one is red."""
    from pytest_ane.report.terminal import table
    from pytest_ane.report.verdict import failure

    required = inventory.required(selection)
    if not required:
        raise EvidenceError(
            "No policy of the selected shards requires evidence, so nothing was verified; it is "
            'required by policy.placement.require = "plan" and policy.fidelity.require or '
            'policy.behaviour.require = "device".'
        )
    verdicts = [(inventory.proven(gate, subject), subject) for gate, subject in required]
    # In a pipe rows are whole.
    width = shutil.get_terminal_size((10_000, 0)).columns - 1
    rows = table([_row(v) for v, _ in verdicts], width=width, everything=True)
    yield from (line.text for line in rows)
    bad = [(v, subject) for v, subject in verdicts if v.status != "passed"]
    for verdict, _ in bad:
        yield from ("", failure(verdict))
    red = [v for v, subject in bad if v.status == "failed" or subject.policy.unproven == "fail"]
    if red:
        raise UnprovenError(f"{len(red)} of {len(verdicts)} verdicts are red.")


def _row(verdict: Verdict) -> Row:
    from pytest_ane.report.rows import Row
    from pytest_ane.report.verdict import row

    warned = verdict.status == "passed" and bool(verdict.warnings)
    return Row(verdict.gate, verdict.subject, verdict.status, row(verdict), warned=warned)


def _prune(inventory: Inventory, yes: bool) -> Iterator[str]:
    """Delete statements that no shard uses, after a list of them and a yes."""
    from pytest_ane.evidence.unused import is_evidence

    unused = inventory.unused()
    if not unused:
        yield f"no unused file in {inventory.store.folder}"
        return
    yield from (f"unused {path}" for path in unused)
    if not confirmed(f"Delete {_files(len(unused))}?", yes):
        yield (
            f"{_files(len(unused))} would be deleted; nothing was: "
            "pytest-ane evidence prune --yes deletes them"
        )
        return
    for path in filter(is_evidence, unused):  # A file may have changed since it was listed.
        try:
            path.unlink()
        except OSError as error:
            raise EvidenceError(f"{path} cannot be removed: {error.strerror}.") from None
    yield f"{_files(len(unused))} removed from {inventory.store.folder}"


def _files(count: int) -> str:
    return f"{count} file{'' if count == 1 else 's'}"
