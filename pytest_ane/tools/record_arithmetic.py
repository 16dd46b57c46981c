"""`pytest-ane record-arithmetic`: rows that show how the ANE of this Mac computes."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_ane.cli.output import Failed, Output
from pytest_ane.mlprogram.atomic import write_atomically
from pytest_ane.mlprogram.errors import ExecutionError

if TYPE_CHECKING:
    from pytest_ane.backends.coreml import Machine
    from pytest_ane.experiments import Row

HELP = "record on a Mac how its ANE computes, as rows to share"
EXAMPLE = "pytest-ane record-arithmetic --out m4.csv"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The experiments, and the file."""
    parser.add_argument(
        "experiments",
        nargs="*",
        metavar="EXPERIMENT",
        help="one to run, such as exp (default: all)",
    )
    parser.add_argument(
        "--out",
        type=Path,
        default=Path("ane-arithmetic.csv"),
        metavar="FILE.csv",
        help="a new file for the rows (default: ane-arithmetic.csv)",
    )


def run(options: argparse.Namespace) -> Output:
    """Run the experiments; fails where no row was recorded. The file is written after each."""
    from pytest_ane.backends.coreml.process import Device
    from pytest_ane.experiments import EXPERIMENTS, chip_of, find_machine, older_generation, record

    machine, device = find_machine(), Device()
    if options.out.exists():
        raise ExecutionError(f"--out {options.out}: exists; name another file, or delete it.")
    names = _names(options.experiments, tuple(EXPERIMENTS))
    yield f"{machine}, {len(names)} experiments"
    if older := older_generation(machine):
        yield (
            f"{older} is of an older generation than the rules are for (h16+, M4 and later): its "
            "rows are recorded, and count for itself alone"
        )
    rows: list[Row] = []
    left_out: dict[str, str] = {}
    remarks: list[str] = []
    for name in names:
        _write(options.out, machine, rows, left_out)
        recording = record(EXPERIMENTS[name](), machine, remarks.append, device)
        if not recording.rows:
            left_out[name] = recording.reason
            yield f"{name}: left out, {recording.reason}"
            continue
        rows += recording.rows
        reason = f", {recording.reason}" if recording.reason else ""
        yield f"{name}: {len(recording.rows)} rows{reason}"
    _write(options.out, machine, rows, left_out)
    data = {
        "file": options.out,
        "chip": chip_of(machine),
        "rows": len(rows),
        "left_out": left_out,
        "remarks": remarks,
    }
    yield from remarks
    if not rows:
        return Failed(f"No experiment ran on the ANE of this Mac ({machine}); see above.", data)
    yield f"{options.out}: {len(rows)} rows of {len(names) - len(left_out)} experiments"
    return data


def _names(chosen: Sequence[str], known: Sequence[str]) -> Sequence[str]:
    """The chosen experiments, in the order of all.

    Raises:
        ExecutionError: there is none of a name.
    """
    if unknown := [name for name in chosen if name not in known]:
        raise ExecutionError(
            f"There is no experiment {unknown[0]!r}; there are {', '.join(known)}."
        )
    return [name for name in known if not chosen or name in chosen]


def _write(file: Path, machine: Machine, rows: Sequence[Row], left_out: Mapping[str, str]) -> None:
    """Write the rows so far.

    Raises:
        ExecutionError: the file cannot be written.
    """
    from importlib.metadata import version

    from pytest_ane import __version__
    from pytest_ane.experiments import to_csv

    comments = [
        f"Outputs of the ANE, recorded by pytest-ane {__version__} with coremltools "
        f"{version('coremltools')} on {machine}, {machine.compiler}.",
        *(f"Left out: {name}: {' '.join(reason.split())}" for name, reason in left_out.items()),
    ]
    try:
        write_atomically(file, to_csv(rows, comments))
    except OSError as error:
        raise ExecutionError(f"--out {file}: cannot be written ({error.strerror}).") from None
