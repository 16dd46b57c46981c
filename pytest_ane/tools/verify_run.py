"""`pytest-ane verify-run`: a run judged again by the base branch, the required check."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from pytest_ane.cli.options import add_project
from pytest_ane.cli.output import Failed, Output, terminal_width
from pytest_ane.mlprogram.errors import EvidenceError

HELP = "judge a run again from its records, by the base branch's rules"
EXAMPLE = "python -I -m pytest_ane.cli verify-run run.jsonl --policy-from origin/main"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The run, the base, and what is measured again."""
    parser.add_argument("recorded", type=Path, metavar="RUN", help="of --ane-report=run.jsonl")
    parser.add_argument(
        "--policy-from",
        required=True,
        metavar="REF|DIR",
        help="the base branch: a commit that git knows, or a checkout of it",
    )
    parser.add_argument(
        "--recheck",
        type=_recheck,
        default=0.0,
        metavar="N|SHARE",
        help="measure again so many of the measurements: 5, or 10%%; the commit picks them",
    )
    parser.add_argument(
        "--reviewed",
        action="store_true",
        help="somebody has agreed to the changes of manifest, keys and gates: let the pull "
        "request's own manifest judge",
    )
    add_project(parser)


def run(options: argparse.Namespace) -> Output:
    """Judge it; fails where anything is red, and where what judges is changed unreviewed."""
    from pytest_ane.records.audit import Auditor, base_of
    from pytest_ane.records.run import read_run
    from pytest_ane.report.rows import Row
    from pytest_ane.report.terminal import table
    from pytest_ane.report.verdict import row

    if not sys.flags.isolated:
        raise EvidenceError(
            "verify-run would import what lies in the pull request; run it isolated: "
            "python -I -m pytest_ane.cli verify-run ..."
        )
    recorded = read_run(options.recorded)
    with base_of(options.policy_from, options.manifest or Path("shards.toml")) as base:
        auditor = Auditor(
            recorded, base, cache=options.cache, reviewed=options.reviewed, recheck=options.recheck
        )
        audit = auditor.audit()
    rows = [
        Row(v.gate, v.subject, v.status, row(v), allowed=auditor.allows(v)) for v in audit.verdicts
    ]
    for line in table(rows, width=terminal_width(), everything=False):
        yield line.text
    yield from (f"changed: {line}" for line in audit.changes)
    yield f"measured again: {', '.join(audit.rechecked) or 'nothing'}"
    red = [row for row in rows if row.red]
    data = {"problems": audit.problems, "changes": audit.changes, "rechecked": audit.rechecked,
            "verdicts": rows}  # fmt: skip
    if red or audit.problems:
        lines = [*audit.problems, *(f"{row.gate} {row.subject}: {row.summary}" for row in red)]
        return Failed("\n".join(("the run does not count", *(f"  - {x}" for x in lines))), data)
    yield "the run counts"
    return data


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
