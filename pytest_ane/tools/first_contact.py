"""`pytest-ane first-contact`: what the Core ML backend assumes, checked on a Mac."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pytest_ane.cli.options import add_manifest
from pytest_ane.cli.output import Failed, Output
from pytest_ane.mlprogram.errors import BackendError, ExecutionError

if TYPE_CHECKING:
    from pytest_ane.first_contact import Finding, Setup

HELP = "check on a Mac what the Core ML backend assumes, and read what was found there"
EXAMPLE = "pytest-ane first-contact --shard L01"
_SECONDS = 300.0
_WORDS = {True: "holds", False: "refuted", None: "not known"}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What to run, and an archive to read instead."""
    parser.add_argument(
        "--shard", default="", help="the shard whose gates run (default: a small package)"
    )
    add_manifest(parser)
    parser.add_argument(
        "--folder",
        type=Path,
        default=Path("first-contact"),
        help="where facts are kept; a run goes on where it was (default: first-contact)",
    )
    parser.add_argument(
        "--skip", action="append", default=[], metavar="STEP", help="a step to leave out"
    )
    parser.add_argument(
        "--require",
        action="append",
        default=[],
        metavar="STEP",
        help="fail unless all that is assumed of a step holds",
    )
    parser.add_argument(
        "--seconds",
        type=float,
        default=_SECONDS,
        help=f"how long a step may take before it counts as hanging (default: {_SECONDS:g})",
    )
    parser.add_argument(
        "--replay",
        type=Path,
        metavar="FOLDER",
        help="rehearse: a script of pytest_ane.testing answers for Core ML",
    )
    parser.add_argument(
        "--read", type=Path, metavar="ARCHIVE", help="print what an archive found; on any machine"
    )
    parser.add_argument(
        "--fixtures",
        type=Path,
        metavar="DIR",
        help="with --read: write its recordings as fixtures of pytest_ane.testing",
    )


def run(options: argparse.Namespace) -> Output:
    """Run the steps that are left, write the archive, and print the table."""
    from pytest_ane.first_contact import STEPS, compare, pack, read_archive

    _check_steps([*options.skip, *options.require])
    if options.read:
        archive = read_archive(options.read)
        findings = list(compare(archive.facts))
        yield from _table(findings)
        written = archive.fixtures(options.fixtures) if options.fixtures else []
        yield from (f"{folder}: a fixture" for folder in written)
        data: dict[str, Any] = {"findings": findings, "facts": archive.facts, "fixtures": written}
        return _required(options.require, findings, data)
    if options.fixtures:
        raise ExecutionError("--fixtures takes the recordings of an archive; name it with --read.")
    if not set(STEPS) - set(options.skip):
        raise ExecutionError("--skip leaves no step to run; leave one of them out.")
    setup = _setup(options)
    yield from _run(options, setup)
    target = setup.folder.parent / f"first-contact-{setup.folder.name}.zip"
    yield from _listing(setup.folder, target)
    pack(setup.folder, target)
    facts = read_archive(target).facts
    findings = list(compare(facts))
    yield from _table(findings)
    yield f"{target}: read it on any machine with `pytest-ane first-contact --read {target}`"
    data = {"archive": target, "findings": findings, "facts": facts}
    return _required(options.require, findings, data)


def _check_steps(names: Sequence[str]) -> None:
    """Raise `ExecutionError` for a step that does not exist."""
    from pytest_ane.first_contact import STEPS

    if unknown := [name for name in names if name not in STEPS]:
        raise ExecutionError(f"There is no step {unknown[0]!r}; there are {', '.join(STEPS)}.")


def _required(steps: Sequence[str], findings: Sequence[Finding], data: dict[str, Any]) -> Any:
    for finding in findings:
        if finding.step in steps and not finding.holds:
            return Failed(
                f"{finding.step}: {finding.assumed} This is {_WORDS[finding.holds]}: "
                f"{finding.found.rstrip('.')}.",
                data,
            )
    return data


def _setup(options: argparse.Namespace) -> Setup:
    """The run's setup, in a folder of this build of macOS.

    Raises:
        BackendError: there is no Core ML here.
    """
    from pytest_ane.backends.coreml.machine import has_native, system_build
    from pytest_ane.first_contact import Setup
    from pytest_ane.testing import Script

    if options.replay:
        build = Script.load(options.replay).machine.build
    elif has_native():
        build = system_build()
    else:
        raise BackendError(
            "first-contact runs on a Mac, and there is no Core ML here; to read what one found, "
            "use --read ARCHIVE."
        )
    if not options.seconds > 0:
        raise ExecutionError(f"--seconds {options.seconds:g}: give more than 0.")
    manifest, replay = (
        str(path.resolve()) if path else "" for path in (options.manifest, options.replay)
    )
    if options.shard:
        _check_shard(options.shard, manifest)
    return Setup((options.folder / build).resolve(), options.shard, manifest, replay)


def _check_shard(shard: str, manifest: str) -> None:
    """Let pytest collect the shard's gates, before half an hour has passed.

    Raises:
        ExecutionError: there are none.
    """
    import subprocess
    import sys

    command = [sys.executable, "-m", "pytest", "--co", "-q", "-m", "gate", "--ane-backend=cpu"]
    command += [f"--ane-shards={shard}", *([f"--ane-manifest={manifest}"] if manifest else [])]
    done = subprocess.run(command, capture_output=True, text=True, errors="replace", check=False)
    if done.returncode:
        said = [line for line in (done.stderr or done.stdout).splitlines() if line.strip()]
        why = said[-1].removeprefix("ERROR: ") if said else "pytest collects no gate"
        raise ExecutionError(f"--shard {shard}: {why}")


def _run(options: argparse.Namespace, setup: Setup) -> Iterator[str]:
    from pytest_ane.first_contact import STEPS, Run

    run = Run(setup, [name for name in STEPS if name not in options.skip], options.seconds)
    left = run.results.left()
    steps = run.results.steps()
    yield f"{len(left)} of {len(steps)} steps to run; Ctrl-C loses none that is done:"
    yield f"their facts are kept in {setup.folder}, and the same command goes on from there"
    for name, facts in run:
        ended = next((f"{key}: {facts[key]}" for key in _UNUSUAL if key in facts), "done")
        yield f"{name}: {ended}"


_UNUSUAL = ("left_out", "failed", "ended", "hung")


def _listing(folder: Path, target: Path) -> Iterator[str]:
    from pytest_ane.first_contact.archive import contents

    yield f"{target} will hold, without your name, home folder and the machine's name:"
    yield from (f"  {name} ({path.stat().st_size:,} bytes)" for name, path in contents(folder))


def _table(findings: Sequence[Finding]) -> Iterator[str]:
    for finding in findings:
        yield f"{_WORDS[finding.holds]:9}  {finding.step}: {finding.assumed}"
        yield f"{'':11}{finding.found}"
