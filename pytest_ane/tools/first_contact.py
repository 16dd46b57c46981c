"""`pytest-ane first-contact`: test on a Mac what the Core ML backend assumes, and how it sums."""

from __future__ import annotations

import argparse
import sys
from contextlib import redirect_stdout
from pathlib import Path

from pytest_ane.cli.options import add_shared, positive
from pytest_ane.cli.output import Failed, Output
from pytest_ane.mlprogram.errors import BackendError

EXAMPLE = "pytest-ane first-contact --shard L01"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What to test, and where results are kept."""
    add = parser.add_argument
    add("--shard", default="", help="the shard whose gates run (default: a small package)")
    add_shared(parser, "manifest")
    words = "where results are kept; a run goes on where it was (default: first-contact)"
    add("--folder", type=Path, default=Path("first-contact"), help=words)
    words = "only tests whose names match, as pytest's own -k: arithmetic, 'loads or image'"
    add("-k", default="", metavar="TESTS", dest="keyword", help=words)
    words = "seconds that Core ML may take for an answer (default: 300)"
    add("--seconds", type=positive, default=300.0, help=words)
    words = "rehearse: a script of pytest_ane.mac.testing answers for Core ML"
    add("--replay", type=Path, metavar="FOLDER", help=words)


def run(options: argparse.Namespace) -> Output:
    """Run the tests that are left, write the archive; fails where an assumption does not hold."""
    from pytest_ane.backends.coreml.machine import has_native, system_build
    from pytest_ane.mac import first_contact
    from pytest_ane.mac.testing import Script

    if options.replay:
        build = Script.load(options.replay).machine.build
    elif has_native():
        build = system_build()
    else:
        raise BackendError("first-contact runs on a Mac, and there is no Core ML here.")
    named = (options.manifest, options.replay)
    manifest, replay = (str(path.resolve()) if path else "" for path in named)
    folder = (options.folder / build).resolve()
    setup = first_contact.Setup(folder, options.shard, manifest, replay, options.seconds)
    yield f"results are kept in {folder}; Ctrl-C loses none, and the same command goes on"
    with redirect_stdout(sys.stderr if options.json else sys.stdout):
        results = first_contact.run(setup, options.keyword)
    target = folder.with_name(f"first-contact-{build}.zip")
    first_contact.pack(folder, target)
    yield f"{target}: to send, without your name, home folder and the machine's name"
    data = {"archive": target, "results": results}
    if failed := [result.test for result in results if result.outcome == "failed"]:
        return Failed(f"{len(failed)} of {len(results)} tests failed; see above.", data)
    return data
